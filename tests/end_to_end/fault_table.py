"""What callers see, fault by fault, as data: the tests check it, docs/failures.md prints it.

`sees` is "returns" or the name of the exception. `stored` counts the copies of the message when
everything works again: on the primary, in the backlog. Where two ends are right it has both.
"""

from __future__ import annotations

from dataclasses import dataclass

RETURNS = "returns"

NOWHERE = "nowhere"
ON_PRIMARY = "primary"
IN_BACKLOG = "backlog"
ON_BOTH = "primary + backlog"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault, one caller, and what comes of it."""

    key: str
    """Also the name of the entity and the id of the message in the test."""
    fault: str
    caller: str
    sees: str
    state: str
    """Of the entity, right after the call."""
    stored: tuple[str, ...]
    carries: tuple[str, ...] = ()
    """What else is on the error, beside `message_ids`, which every error has."""
    note: str = ""


PATIENT = "patient"
"""Waits longer than the failover interval."""

HASTY = "hasty"
"""Waits less."""

UNLIMITED = "without a timeout"

ANY = "any"

ROWS = [
    Row(
        key="kill-patient",
        fault="kill -9 of the primary",
        caller=PATIENT,
        sees=RETURNS,
        state="failed over",
        stored=(IN_BACKLOG,),
        note="no error at all: the retries last until the failover",
    ),
    Row(
        key="kill-hasty",
        fault="kill -9 of the primary",
        caller=HASTY,
        sees="ServiceBusConnectionError",
        state="suspect",
        stored=(NOWHERE,),
        note="the primary's own error; send again",
    ),
    Row(
        key="stop-patient",
        fault="SIGSTOP of the primary: it hangs",
        caller=PATIENT,
        sees=RETURNS,
        state="failed over",
        stored=(IN_BACKLOG, ON_BOTH),
        note="ambiguous (window W1): the primary may hold what it read before it stopped, or reads"
        " when it goes on",
    ),
    Row(
        key="stop-hasty",
        fault="SIGSTOP of the primary: it hangs",
        caller=HASTY,
        sees="OperationTimeoutError",
        state="suspect",
        stored=(NOWHERE, ON_PRIMARY),
        note="ambiguous: send again with the same message id",
    ),
    Row(
        key="drop-before-once",
        fault="connection drops before the commit, once",
        caller=ANY,
        sees=RETURNS,
        state="healthy",
        stored=(ON_PRIMARY,),
        note="the retry went through",
    ),
    Row(
        key="drop-before",
        fault="connection drops before every commit",
        caller=PATIENT,
        sees=RETURNS,
        state="failed over",
        stored=(IN_BACKLOG,),
    ),
    Row(
        key="drop-before-hasty",
        fault="connection drops before every commit",
        caller=HASTY,
        sees="ServiceBusConnectionError",
        state="suspect",
        stored=(NOWHERE,),
    ),
    Row(
        key="drop-after-once",
        fault="connection drops after the commit, once",
        caller=ANY,
        sees=RETURNS,
        state="healthy",
        stored=("primary x2",),
        note="ambiguous: both copies have the same message id",
    ),
    Row(
        key="drop-after-once-detected",
        fault="the same, and the entity detects duplicates",
        caller=ANY,
        sees=RETURNS,
        state="healthy",
        stored=(ON_PRIMARY,),
    ),
    Row(
        key="drop-after-detected",
        fault="connection drops after every commit, and the entity detects duplicates",
        caller=PATIENT,
        sees=RETURNS,
        state="failed over",
        stored=(ON_BOTH,),
        note="window W1: the syphon's copy has the same id, and the entity drops it",
    ),
    Row(
        key="drop-after-hasty",
        fault="connection drops after every commit, and the entity detects duplicates",
        caller=HASTY,
        sees="ServiceBusConnectionError",
        state="suspect",
        stored=(ON_PRIMARY,),
        note="an error does not say that the message is not stored; send again with the same id",
    ),
    Row(
        key="slow-attach-hasty",
        fault="the link takes longer to open than the caller waits",
        caller=HASTY,
        sees="OperationTimeoutError",
        state="healthy",
        stored=(NOWHERE,),
        note="the caller's own time ended: no evidence against the entity; the link goes on opening"
        " for the next call",
    ),
    Row(
        key="too-large",
        fault="the message is larger than the entity takes",
        caller=ANY,
        sees="MessageSizeExceededError",
        state="healthy",
        stored=(NOWHERE,),
        note="refused before it is sent; the link stays open",
    ),
    Row(
        key="throttle-once",
        fault="throttling, once",
        caller=ANY,
        sees=RETURNS,
        state="healthy",
        stored=(ON_PRIMARY,),
    ),
    Row(
        key="throttle",
        fault="throttling, without end",
        caller=PATIENT,
        sees="ServiceBusServerBusyError",
        state="healthy",
        stored=(NOWHERE,),
        note="after the retries; throttling is no outage and is not dodged",
    ),
    Row(
        key="hang",
        fault="the entity does not answer",
        caller=PATIENT,
        sees=RETURNS,
        state="failed over",
        stored=(IN_BACKLOG,),
    ),
    Row(
        key="internal-error",
        fault="the service fails inside (amqp:internal-error)",
        caller=PATIENT,
        sees=RETURNS,
        state="failed over",
        stored=(IN_BACKLOG,),
    ),
    Row(
        key="deleted",
        fault="the queue was deleted",
        caller=ANY,
        sees="MessagingEntityNotFoundError",
        state="healthy",
        stored=(NOWHERE,),
        note="at once, without a retry",
    ),
    Row(
        key="deleted-meanwhile",
        fault="the queue was deleted while it was failed over",
        caller=ANY,
        sees="EntityUnusableError",
        state="unusable",
        stored=(NOWHERE,),
        note="from the ping that finds out; the backlog is not filled for an entity that is gone",
    ),
    Row(
        key="disabled",
        fault="the entity is disabled",
        caller=ANY,
        sees="MessagingEntityDisabledError",
        state="healthy",
        stored=(NOWHERE,),
        note="at once, without a retry",
    ),
    Row(
        key="disabled-meanwhile",
        fault="the entity was disabled while it was failed over",
        caller=ANY,
        sees="EntityUnusableError",
        state="unusable",
        stored=(NOWHERE,),
        note="the ping that is answered clears it",
    ),
    Row(
        key="expired-token",
        fault="the SAS token has expired",
        caller=PATIENT,
        sees="ServiceBusAuthenticationError",
        state="healthy",
        stored=(NOWHERE,),
        note="a credential to mend: the secondary is no way round it",
    ),
    Row(
        key="expires-meanwhile",
        fault="the SAS token expires while the link is open",
        caller=PATIENT,
        sees="ServiceBusAuthenticationError",
        state="healthy",
        stored=(NOWHERE,),
    ),
    Row(
        key="bad-backlog-queue",
        fault="failed over, and one backlog queue of three is disabled",
        caller=ANY,
        sees=RETURNS,
        state="failed over",
        stored=(IN_BACKLOG,),
        note="another queue took it; the bad one is pulled for all senders",
    ),
    Row(
        key="hanging-backlog-queue",
        fault="failed over, and one backlog queue of three does not answer",
        caller=PATIENT,
        sees=RETURNS,
        state="failed over",
        stored=(IN_BACKLOG,),
        note="one attempt_timeout later; it is pulled when another queue answers",
    ),
    Row(
        key="secondary-down",
        fault="the whole secondary is down, the primary is up",
        caller=ANY,
        sees=RETURNS,
        state="healthy",
        stored=(ON_PRIMARY,),
    ),
    Row(
        key="secondary-never-there",
        fault="the secondary was down at pairing (UNPROTECTED), the primary is up",
        caller=ANY,
        sees=RETURNS,
        state="healthy",
        stored=(ON_PRIMARY,),
    ),
    Row(
        key="both-down",
        fault="both are down",
        caller=PATIENT,
        sees="BacklogUnavailableError",
        state="failed over",
        stored=(NOWHERE,),
        carries=("primary_error: ServiceBusConnectionError", "queue_errors: 3"),
        note="when its timeout ends: until then the call waits for the secondary",
    ),
    Row(
        key="both-down-again",
        fault="both are down, and it is known",
        caller=PATIENT,
        sees="BacklogUnavailableError",
        state="failed over",
        stored=(NOWHERE,),
        carries=("primary_error: PairingError", "queue_errors: 3"),
        note="the same; `primary_error` has the text of the last answer",
    ),
    Row(
        key="both-down-without-timeout",
        fault="both are down",
        caller=UNLIMITED,
        sees="BacklogUnavailableError",
        state="failed over",
        stored=(NOWHERE,),
        carries=("primary_error: ServiceBusConnectionError", "queue_errors: 3"),
        note="within the [bound](options.md#a-call-without-a-timeout) of such a call, with one"
        " caller or a thousand",
    ),
    Row(
        key="secondary-blip",
        fault="both are down, and the secondary returns",
        caller=PATIENT,
        sees=RETURNS,
        state="failed over",
        stored=(IN_BACKLOG,),
        note="the lost connection pulls no queue; calls wait, one at a time tries, the first"
        " success frees all",
    ),
    Row(
        key="both-down-unprotected",
        fault="both are down since before the pairing (UNPROTECTED)",
        caller=PATIENT,
        sees="ServiceBusConnectionError",
        state="failed over",
        stored=(NOWHERE,),
        note="the primary's own error: there was never a backlog queue",
    ),
]


def markdown() -> str:
    """The table as docs/failures.md has it."""
    lines = [
        "| fault | the caller | sees | entity | the message is | |",
        "|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        sees = row.sees if row.sees == RETURNS else f"`{row.sees}`"
        sees += "".join(f", `{part}`" for part in row.carries)
        stored = " or ".join(row.stored)
        cells = (row.fault, row.caller, sees, row.state, stored, row.note)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
