"""The rules of conservation: what a record says of its message, and what became of the message.

Each rule stands here once, and is applied twice: to columns of Spark (`tables.calculus`), and to
values of Python (`calculus`), for `twinbus check --proof`. A rule is made of operators that both
have, and of the functions of a `Calculus`, which Python and Spark spell differently.

    record_facts       what one record says of its message
    SUMS, TIMES        how the facts of records add up to those of a message
    message_facts      the fate of a message, by its sums (`tables.journeys` describes the fates)
    after_peek         its fate after a peek into the backlog queues
    after_broker       its fate by the broker's records of messages in backlog queues
    counts_of          what a message adds to the sums of its destination

A condition is never null: it holds, or it does not. Times, labels and fates can be None.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple, Protocol

from twinbus.servicebus.names import BACKLOG_MARK

DELIVERED_FATE: Final = "delivered"
FATES_OF_ACCEPTED: Final = (
    *(DELIVERED_FATE, "dead_lettered", "expired"),
    *("waiting", "lost", "undecided"),
)
UNSEEN: Final = ("undecided", "waiting")
"""Fates of messages that should be in the backlog, and are lost if a peek does not find them."""

BESIDE_FATES: Final = (
    *("raised", "received_accepted", "moved_unsent", "received_unsent"),
    *("reused", "masked", "twinned", "at_twin", "broker_completed"),
    *("second_copies", "redeliveries"),
)
"""Sums of messages beside those of their fates."""

RAN_OUT: Final = "TTLExpiredException"
"""The reason of Service Bus for dead-lettering an expired message."""

BROKER_REASONS: Final = (RAN_OUT, "MaxDeliveryCountExceeded")
"""Reasons for which a broker dead-letters a message by itself."""

BY_THE_BROKER: Final = f"^({'|'.join(BROKER_REASONS)})"

AT_ONCE: Final = "a send failed"
"""The reason of a failover without suspicion: the failover interval is 0."""

ANSWER_MAX_MS: Final = 60_000
"""Maximum duration of one attempt (`attempt_timeout`)."""

KIND: Final = (
    *("pair", "namespace", "side", "entity", "backlog_queue"),
    *("cause", "operation", "outcome", "view"),
)
"""Fields by which tables distinguish records, beside a few that are of some operations only."""

ERASED: Final = "erased:"
"""Prefix of the random name that replaces the id of an erased message (`store.erasure`)."""

ERASED_ID: Final = f"^{ERASED}[0-9a-f]{{32}}$"

SECOND_COPY: Final = "second_copy"
"""The state of a completion by a receiver that did not hand the message out."""

LEFT: Final = "left"
"""The state of a release of a message that its receiver may have handed out, and left unsettled."""

DELETED: Final = "deleted"
"""The broker's state of an entity that was deleted with its messages."""

DEAD_LETTER_QUEUE: Final = "$deadletterqueue"
"""How the path of a dead-letter queue ends, in lower case."""

HOST_REST: Final = ".servicebus."
"""After the label in the host of a namespace, in every cloud of Azure."""

SUBSCRIPTION: Final = r"/subscriptions/[^/]+(/\$deadletterqueue)?$"
"""The end of a subscription's path, in any case of its letters."""

FACTS: Final = tuple(
    """tried sent diverted ambiguous received set_aside completed came_out deferred broker_enqueued
    broker_received broker_completed broker_expired broker_dead_lettered labelled twinned""".split()
)
"""What a message has if any of its records says it: the first of `record_facts`, in their order."""

SUMS: Final[Mapping[str, tuple[str, ...]]] = {
    "failed_sends": ("send_failed",),
    "receipts": ("received",),
    "forwards": ("forwarded",),
    "broker_copies": ("copied",),
    "broker_ended": ("ended",),
    # A record is a send or a divert, to the backlog or to a twin.
    "accepts": ("sent", "diverted", "twinned"),
    "diverts": ("diverted",),
    "twin_forwards": ("twin_forwarded",),
    "twin_ended": ("twin_ended",),
    "second_copies": ("second_copy",),
    "returned": ("returned",),
    "lost_locks": ("lost_lock",),
}
"""What is counted of a message, and the facts of a record of which each adds 1."""


class TimeOf(NamedTuple):
    """Facts whose records have a time, unless they have the fact `but`."""

    facts: tuple[str, ...]
    but: str | None = None


LAST_TIMES: Final = {
    "settled_ms": TimeOf(("completed", "set_aside"), but="twin_ended"),
    "forwarded_ms": TimeOf(("forwarded",), but="twin_forwarded"),
}
FIRST_TIMES: Final = {
    "accepted_ms": TimeOf(("sent", "diverted", "twinned")),
    "diverted_ms": TimeOf(("diverted",)),
    "tried_ms": TimeOf(("divert_tried",)),
    "delivered_ms": TimeOf(("sent", "forwarded", "received", "twinned")),
    "received_ms": TimeOf(("received",)),
}
"""The times of a message, the greatest and the least of its records."""


class Calculus(Protocol):
    """What rules do with conditions, numbers and texts beside `&`, `|`, `+`, `-` and comparing."""

    def no(self, condition: Any) -> Any:
        """Return whether a condition does not hold."""

    def choose(self, *cases: tuple[Any, Any], otherwise: Any = None) -> Any:
        """Return the value of the first case whose condition holds."""

    def is_known(self, value: Any) -> Any:
        """Return whether a value is not null."""

    def known(self, *values: Any) -> Any:
        """Return the first value that is not null."""

    def one_of(self, value: Any, words: Collection[str]) -> Any: ...

    def least(self, *numbers: Any) -> Any: ...

    def greatest(self, *numbers: Any) -> Any: ...

    def share(self, number: Any, parts: Any) -> Any:
        """Return the whole part of a quotient."""

    def begins(self, text: Any, words: str) -> Any: ...

    def ends(self, text: Any, words: str) -> Any: ...

    def contains(self, text: Any, words: str) -> Any: ...

    def before(self, text: Any, mark: str) -> Any:
        """Return the part of a text before the first mark; all of it without one."""

    def lower(self, text: Any) -> Any: ...

    def without(self, text: Any, pattern: str) -> Any:
        """Return a text without what a pattern matches, in any case of its letters."""


class RecordTraits(NamedTuple):
    """What rules read of a record. Fields that it leaves out have their meaning."""

    operation: Any
    outcome: Any
    view: Any
    cause: Any
    state: Any
    error: Any
    is_twin: Any
    """It is about a message in a twin."""
    label: Any


def destination_of(c: Calculus, entity: Any) -> Any:
    """Return the queue or topic of an entity's path, which may be that of a subscription.

    In lower case: names of Service Bus ignore case.
    """
    # Most paths have no such part, and searching for one is the most expensive step of all.
    found = c.choose((c.contains(entity, "/"), c.without(entity, SUBSCRIPTION)), otherwise=entity)
    return c.lower(found)


def is_in_backlog(c: Calculus, path: Any) -> Any:
    return c.contains(path, BACKLOG_MARK)


def label_of(
    c: Calculus, *, pair: Any, backlog_queue: Any, entity: Any, side: Any, namespace: Any
) -> Any:
    """Return the label of the primary of a record; "" if no field has it."""
    labels = (
        c.before(pair, "+"),
        _label_in(c, backlog_queue),
        # In the broker's view a message of the backlog is in the backlog queue.
        _label_in(c, entity),
        # A consumer may name it by its host. One that received from a twin names the secondary.
        c.choose((side != "secondary", c.before(c.lower(namespace), HOST_REST))),
    )
    return c.lower(c.known(*labels, ""))


def _label_in(c: Calculus, text: Any) -> Any:
    path = c.lower(text)
    return c.choose((is_in_backlog(c, path), c.before(path, BACKLOG_MARK)))


def is_receipt(record: RecordTraits) -> Any:
    """Return whether a record is the receipt of a message by a consumer."""
    succeeded = (record.view == "client") & (record.outcome == "ok")
    return succeeded & (record.operation == "receive")


def record_facts(c: Calculus, record: RecordTraits) -> dict[str, Any]:
    """Return what a record says of its message: `FACTS`, and what is only counted."""
    operation, twin = record.operation, record.is_twin
    ok, client = record.outcome == "ok", record.view == "client"
    broker = c.no(client)
    # Settlements of a consumer are not those of the syphon.
    by_consumer = record.cause == "consumer"
    mine = client & ok & c.no(by_consumer)
    tried = client & c.one_of(operation, ("send", "divert"))
    diverted = client & ok & (operation == "divert")
    forwarded = client & ok & (operation == "forward")
    settles = c.one_of(operation, ("complete", "defer", "dead_letter", "abandon"))
    dead_lettered = operation == "dead_letter"
    # An entity may dead-letter expired messages, with this reason.
    ran_out = (operation == "expire") | (dead_lettered & c.begins(record.error, RAN_OUT))
    dropped = record.state == "duplicate"
    released, left = operation == "release", record.state == LEFT
    wanted_again = ok & c.one_of(operation, ("abandon", "defer"))
    return {
        "tried": tried,
        "sent": client & ok & (operation == "send"),
        "diverted": diverted & c.no(twin),
        "ambiguous": tried & (record.outcome == "unknown"),
        "received": is_receipt(record),
        "set_aside": mine & dead_lettered,
        "completed": mine & (operation == "complete"),
        "came_out": client & (operation == "backlog_receive") & c.no(twin),
        "deferred": mine & (operation == "defer"),
        "broker_enqueued": broker & ok & (operation == "send"),
        "broker_received": broker & ok & (operation == "receive"),
        "broker_completed": broker & ok & (operation == "complete"),
        "broker_expired": broker & ok & ran_out,
        "broker_dead_lettered": broker & ok & dead_lettered & c.no(ran_out),
        "labelled": client & (record.label != ""),
        "twinned": diverted & twin,
        # The rest is only counted, or gives a time its meaning.
        "send_failed": tried & (record.outcome == "failed"),
        "forwarded": forwarded,
        "copied": broker & ok & (operation == "send") & c.no(dropped),
        "ended": broker & ok & c.one_of(operation, ("complete", "dead_letter", "expire")),
        "divert_tried": client & (operation == "divert") & c.no(twin),
        "twin_forwarded": forwarded & twin,
        "twin_ended": mine & c.one_of(operation, ("complete", "dead_letter")) & twin,
        # Whatever its outcome: the receiver did not hand it out. Receive-and-delete has no
        # completion.
        "second_copy": client
        & by_consumer
        & c.one_of(operation, ("complete", "receive"))
        & (record.state == SECOND_COPY),
        # A deferred message is received again, by its number. What was released was not handed out,
        # whatever became of the release.
        "returned": client & by_consumer & (wanted_again | (released & c.no(left))),
        "lost_lock": client & by_consumer & ((settles & c.no(ok)) | (released & left)),
    }


def message_facts(c: Calculus, m: Any) -> dict[str, Any]:
    """Return what became of a message, by its facts, sums and times.

    `m` also has `repeats`, receipts after the first of each receiver, and `receivers`.
    """
    at_home, received = m.sent | (m.forwards > 0), m.received
    in_twin = m.twinned & (m.twin_ended == 0)
    acknowledged = at_home | in_twin | (m.twinned & received)
    accepted = m.sent | m.diverted | m.twinned
    # Copies that the syphon took out of a twin are at no destination.
    stored = m.broker_enqueued & ((m.twin_ended == 0) | (m.broker_copies > m.twin_ended))
    all_ended = (m.broker_copies > 0) & (m.broker_ended >= m.broker_copies)
    # A subscription of a topic has a copy of its own to complete.
    unseen = c.share(m.second_copies, c.greatest(m.receivers, 1))
    copies = c.greatest(m.broker_copies - m.twin_ended - unseen, 0)
    # Receipts after the first, and those of them that a consumer asked for or did not hand out.
    handed_out = c.greatest(m.repeats - m.second_copies, 0)
    redeliveries = c.least(handed_out, m.returned)
    fate = c.choose(
        (c.no(accepted), None),
        (acknowledged | received | stored, DELIVERED_FATE),
        (m.broker_expired, "expired"),
        # A dead letter that was put back and then lost, or a copy of each: only a peek can decide.
        (m.set_aside & m.completed, "undecided"),
        (m.set_aside | m.broker_dead_lettered, "dead_lettered"),
        (m.completed, "lost"),
        otherwise="undecided",
    )
    # A divert without an answer stored its message if that came out of the backlog.
    entered_ms = c.known(m.diverted_ms, c.choose((m.came_out, m.tried_ms)))
    # The record of the completion can be missing beside that of the forward, and both beside a
    # receipt. A message sent without an answer, or to a twin, can be at both ends.
    elsewhere = m.sent | m.ambiguous | m.twinned
    received_ms = c.choose((c.no(elsewhere), m.received_ms))
    return {
        "accepted": accepted,
        "acknowledged": acknowledged,
        # No record says that it left the twin.
        "at_twin": in_twin & c.no(at_home) & c.no(received) & c.no(all_ended),
        "copies": copies,
        "redeliveries": redeliveries,
        "repeats": handed_out - redeliveries,
        "entered_ms": entered_ms,
        "left_ms": c.known(m.settled_ms, m.forwarded_ms, received_ms),
        "fate": fate,
    }


def after_peek(c: Calculus, fate: Any, place: Any) -> Any:
    """Return the fate of a message after a peek into every backlog queue.

    `place` is where the peek saw it, "waiting" or "dead_lettered"; None: nowhere. One seen in both
    places, a copy of each, still waits.
    """
    is_seen = c.is_known(place)
    return c.choose(
        (c.no(c.is_known(fate)), None),
        (fate == DELIVERED_FATE, fate),
        (is_seen & (c.known(place, "") == "waiting"), "waiting"),
        # An expired message may be kept among the dead letters.
        (fate == "expired", fate),
        (is_seen, place),
        # Even if the broker stored it: a queue can be deleted with its messages.
        (c.one_of(fate, UNSEEN), "lost"),
        otherwise=fate,
    )


def is_open(c: Calculus, fate: Any) -> Any:
    """Return whether the broker's records of backlog queues can decide a fate."""
    return c.one_of(c.known(fate, ""), ("undecided", "dead_lettered", "lost"))


def broker_fate(c: Calculus, q: Any) -> Any:
    """Return the fate of an id in backlog queues by the broker's records; None: not known.

    `q` has `standing` and `swept` copies (swept: in a queue that was deleted), and what happened:
    `expired`, `dead_lettered`, `completed`, and `taken_out` of the dead letters.
    """
    return c.choose(
        (q.standing > 0, "waiting"),
        (q.swept > 0, None),
        (q.expired, "expired"),
        # Taken out of the dead letters, put back, and then completed.
        (q.completed & q.taken_out, "lost"),
        (q.dead_lettered, "dead_lettered"),
        (q.completed, "lost"),
    )


def after_broker(
    c: Calculus, fate: Any, told: Any, *, sharers: Any, held_copies: Any, standing: Any
) -> Any:
    """Return the fate of a message after the broker told that of its id (`broker_fate`).

    `sharers` are the messages of the pair with this id whose fate is open: if there are several,
    all wait if there are as many copies; else each keeps its fate.
    """
    # The copy that was not lost can be that of a delivered message with this id.
    is_sure = (fate != "lost") | (held_copies == 1) | (told == "waiting")
    return c.choose(
        (c.no(is_open(c, fate) & c.is_known(told)), fate),
        (sharers == 1, c.choose((is_sure, told), otherwise=fate)),
        (standing >= sharers, told),
        otherwise=fate,
    )


def counts_of(c: Calculus, m: Any) -> dict[str, Any]:
    """Return what a message is counted as in the sums of its destination: conditions."""
    accepted, received = m.accepted, m.received
    # Taken out of the backlog or a twin, settled there, or brought home from it.
    moved = (m.forwards > 0) | m.came_out | (m.twin_ended > 0)
    moved |= c.no(received) & c.is_known(m.left_ms)
    reused = m.accepts > 1
    # One that is not forwarded can be behind one that is.
    behind = m.diverts > m.forwards - m.twin_forwards
    behind |= m.twin_ended > m.twin_forwards
    return {
        "tried": m.tried,
        "accepted": accepted,
        "raised": m.tried & c.no(accepted),
        "diverted": m.diverted,
        "ambiguous": m.ambiguous,
        "entered": c.is_known(m.entered_ms),
        "received": received,
        "received_accepted": accepted & received,
        "moved_unsent": c.no(m.tried) & moved,
        "received_unsent": c.no(m.tried) & received & c.no(moved),
        "reused": reused,
        "masked": reused & behind,
        "twinned": m.twinned,
        "at_twin": m.at_twin,
        # The syphon completes copies in twins too.
        "broker_completed": accepted
        & m.broker_completed
        & ((m.twin_ended == 0) | (m.broker_ended > m.twin_ended)),
        **{fate: c.known(m.fate, "") == fate for fate in FATES_OF_ACCEPTED},
    }


def is_missing(c: Calculus, m: Any) -> Any:
    """Return whether a message was accepted and is not delivered."""
    return m.accepted & (c.known(m.fate, "") != DELIVERED_FATE)


def is_duplicate(m: Any) -> Any:
    """Return whether a message was received more than once at an entity, or stored twice.

    Copies that the syphon brought home from a twin, those that a receiver completed without handing
    them out, and what a consumer abandoned, deferred or released and received again are not
    duplicates.
    """
    return (m.repeats > 0) | (m.copies > 1)


def window_of(c: Calculus, m: Any) -> Any:
    """Return why a message exists more than once.

    syphon        forwarded more than once: a crash between forward and completion
    twin          a send ended without an answer, and the twin took the message
    ambiguous     a send ended without an answer and was repeated elsewhere
    stored_twice  the broker stored it more than once, and no record says why
    redelivered   the broker stored it once, or as many settlements failed or were left out: it came
                  again to a consumer that did not complete it, mostly because its lock was lost
    unexplained   none of these, and there is no broker's view
    """
    came_again = (m.copies == 1) | (m.lost_locks >= m.repeats)
    return c.choose(
        (m.forwards > 1, "syphon"),
        (m.ambiguous & m.twinned, "twin"),
        (m.ambiguous, "ambiguous"),
        (m.copies > 1, "stored_twice"),
        (came_again, "redelivered"),
        otherwise="unexplained",
    )


def is_known_by_clients(c: Calculus, m: Any) -> Any:
    """Return whether a client, not only the broker, recorded something of a message."""
    known = m.tried | m.received | m.came_out | (m.forwards > 0)
    return known | c.is_known(m.left_ms)


def stands_at(c: Calculus, m: Any, at_ms: Any) -> Any:
    """Return whether a message was in a backlog queue at a time, by the broker's records."""
    is_there = m.broker_copies > m.broker_ended
    is_letter = c.ends(m.destination, DEAD_LETTER_QUEUE)
    return c.no(is_letter) & (m.first_ms <= at_ms) & (is_there | (m.last_ms > at_ms))


def is_erased_id(message_id: str) -> bool:
    return re.search(ERASED_ID, message_id) is not None
