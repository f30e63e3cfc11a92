"""The judgement of conservation: from counted messages to a `ConservationReport`. No Spark in it.

The tables (`conservation`) and `twinbus check --proof` (`pipeline.proof`) count the messages, each
in its own way; what follows from the counts is here once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from twinbus.pipeline.core.rules import (
    BESIDE_FATES,
    FATES_OF_ACCEPTED,
    UNSEEN,
    is_erased_id,
)
from twinbus.pipeline.reports.documents import (
    AgedBacklog,
    Balance,
    ConservationReport,
    DuplicateMessage,
    NamedMessage,
    ReportScope,
)
from twinbus.pipeline.reports.scope import Lines, from_sums, unread, whole_days

Counts = Mapping[str, Any]
"""Counts by name, of one destination: those of fates, `BESIDE_FATES`, accepted, repeated, and
`heard`, whether a consumer recorded receipts there."""

LABEL: Final = "primary_label"

IDS_MAX: Final = 1_000
"""Limit of ids of a kind that a report names."""

ENTITIES_MAX: Final = 10_000

_COUNTED: Final = (*FATES_OF_ACCEPTED, "accepted", *BESIDE_FATES, "repeated")

WORST_FIRST: Final = ("lost", "expired", "dead_lettered", "undecided", "waiting")


class Peeked(Protocol):
    """When a peek into backlog queues began, and of which pairs the queues were."""

    @property
    def began_ms(self) -> int: ...

    def is_of(self, label: str) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class CountedMessages:
    """What was counted of the messages in scope."""

    by_entity: Sequence[Counts]
    """The worst first (`worst_first`)."""
    named: tuple[NamedMessage, ...]
    """Undelivered messages, the worst first, at most `IDS_MAX`."""
    left_out: int
    """Undelivered messages that are not named."""
    duplicates: tuple[DuplicateMessage, ...]
    duplicate_windows: Mapping[str, int]
    unsent: int
    """Messages that the broker stored in a backlog queue and no client recorded."""


def judged_report(
    counted: CountedMessages,
    scope: ReportScope,
    lines: Lines,
    *,
    peek: Peeked | None,
    of_others: Callable[[], int],
    aged: tuple[AgedBacklog, ...] = (),
    assumed: tuple[str, ...] = (),
) -> ConservationReport:
    """Judge what was counted.

    `of_others` returns the operations on messages in scope. It is asked if none was accepted.
    """
    # Of the notice board, or where nothing but refused sends went, nothing is counted.
    rows = [row for row in counted.by_entity if _has_counts(row)]
    sums = Sums(peek=peek, has_broker=lines.broker_records > 0, counted=_added(rows))
    incomplete = (
        *unbalanced(rows),
        *_incomplete(scope, {**sums.counted, "stored_unsent": counted.unsent}, of_others),
    )
    return ConservationReport(
        scope=scope,
        total=sums.total(rows),
        entities=tuple(sums.balance(row) for row in rows[:ENTITIES_MAX]),
        lost_at_least=sums.counted["lost"],
        messages=counted.named,
        messages_left_out=counted.left_out,
        duplicate_windows=counted.duplicate_windows,
        duplicates=counted.duplicates,
        aged=aged,
        peeked_ms=None if peek is None else peek.began_ms,
        nameless=lines.nameless,
        reused=sums.counted["reused"],
        incomplete=incomplete,
        unknown=(
            *incomplete,
            *_unknown(scope, sums, rows, lines.nameless),
            *_unseen(rows, peek),
            *_erased(counted.named, peek),
        ),
        assumed=(*whole_days(scope), *assumed, *from_sums(scope)),
    )


def worst_first(row: Counts) -> tuple[Any, ...]:
    """Return the place of an entity among all of a report."""
    return (-row["lost"], -row["undecided"], -row["accepted"], row["destination"], row[LABEL])


def _has_counts(row: Counts) -> bool:
    return any(row[name] for name in _COUNTED)


def _added(rows: Sequence[Counts]) -> Counts:
    return {
        "destination": "",
        LABEL: "",
        **{name: sum(row[name] for row in rows) for name in _COUNTED},
    }


@dataclass(frozen=True)
class Sums:
    """Makes balances of counts; what cannot be known is None."""

    peek: Peeked | None
    has_broker: bool
    counted: Counts

    def balance(self, row: Counts) -> Balance:
        return self._balance(row, is_peeked=self._is_peeked(row))

    def _is_peeked(self, row: Counts) -> bool:
        return self.peek is not None and self.peek.is_of(row[LABEL])

    def _balance(self, row: Counts, *, is_peeked: bool) -> Balance:
        lost, undecided, expired = row["lost"], row["undecided"], row["expired"]
        is_settled = self.has_broker or not (lost or undecided)
        heard = row.get("heard", False)
        return Balance(
            entity=row["destination"],
            accepted=row["accepted"],
            delivered=row["delivered"],
            # Without a peek the broker's view may know some.
            waiting=row["waiting"] or (0 if is_peeked or not undecided else None),
            dead_lettered=row["dead_lettered"] or (0 if is_peeked or not undecided else None),
            expired=expired or (0 if is_settled else None),
            lost=None if undecided else lost,
            undecided=undecided,
            # Without records of consumers the broker's view may know some.
            received=row["received_accepted"] if heard else row["broker_completed"] or None,
            duplicates=row["repeated"] if heard or row["repeated"] else None,
            raised=row["raised"],
            primary_label=row[LABEL],
            at_twin=row["at_twin"],
            second_copies=row["second_copies"],
            redeliveries=row["redeliveries"],
        )

    def total(self, rows: Sequence[Counts]) -> Balance:
        """Return the balance of all entities; a figure unknown for one is unknown for all."""
        all_heard = bool(rows) and all(row["heard"] for row in rows if row["accepted"])
        is_peeked = all(self._is_peeked(row) for row in rows if row["undecided"])
        whole = self._balance({**self.counted, "heard": all_heard}, is_peeked=is_peeked)
        any_heard = any(row["heard"] for row in rows)
        received = [self.balance(row).received for row in rows if row["accepted"]]
        known = [number for number in received if number is not None]
        if not all_heard:
            is_known = known and len(known) == len(received)
            whole = whole._replace(received=sum(known) if is_known else None)
        return whole._replace(duplicates=self.counted["repeated"] if any_heard else None)


def _unknown(
    scope: ReportScope, sums: Sums, rows: Sequence[Counts], nameless: int
) -> Iterator[str]:
    if sums.peek is None and sums.counted["undecided"]:
        yield "waiting and dead-lettered: the backlog queues were not peeked"
    silent = [row for row in rows if row["accepted"] and not row["heard"]]
    for names, figures in (
        (
            [row["destination"] for row in silent if not row["broker_completed"]],
            "received and duplicates",
        ),
        ([row["destination"] for row in silent if row["broker_completed"]], "duplicates"),
    ):
        if names:
            named = _names(list(dict.fromkeys(names)))
            yield f"{figures}: no consumer of {named} kept a ledger"
    if sums.counted["lost"] and not sums.has_broker:
        yield "expired: one of the lost can have expired, which only the broker's view tells"
    if nameless:
        yield f"{nameless:,} accepted messages have no id or no entity: not followed"
    yield from unread(scope)


def _incomplete(scope: ReportScope, counted: Counts, of_others: Callable[[], int]) -> Iterator[str]:
    """Yield why accepted messages may exist that have no record in scope."""
    if not scope.records:
        yield "everything: no record is in scope"
    moved, received = counted["moved_unsent"], counted["received_unsent"]
    if moved:
        yield (
            f"{moved:,} messages were moved out of the backlog or a twin, and no record says that"
            " they were accepted: records of their senders are missing"
        )
    if received:
        yield (
            f"{received:,} messages were received, and no record says that they were accepted:"
            " their senders keep no ledger, or records of them are missing"
        )
    stored = counted["stored_unsent"]
    if stored:
        yield (
            f"{stored:,} messages were stored in a backlog queue, as the broker's records say, and"
            " no record says that they were accepted: their senders keep no ledger, or records of"
            " them are missing"
        )
    is_any_known = counted["accepted"] or counted["raised"] or moved or received or stored
    if not is_any_known and (operations := of_others()):
        yield (
            f"{operations:,} operations on messages are in scope, and no record in it says that one"
            " was accepted: ask for more days (--since), or their senders keep no ledger"
        )
    if counted["masked"]:
        yield (
            f"{counted['masked']:,} ids were accepted more than once and diverted more often than"
            " forwarded, or taken out of a twin more often than forwarded: a message that is not"
            " delivered can have the id of one that is"
        )


def unbalanced(rows: Sequence[Counts]) -> Iterator[str]:
    """Yield a sentence if fates do not add up to the accepted messages."""
    off = [row for row in rows if row["accepted"] != _fates_of(row)]
    if off:
        accepted, fates = sum(row["accepted"] for row in off), sum(map(_fates_of, off))
        yield (
            f"the tables contradict themselves: {accepted:,} messages of"
            f" {_names([row['destination'] for row in off])} were accepted and {fates:,} have a"
            " fate; rebuild the tables (twinbus ledger rebuild LEDGER)"
        )


def _fates_of(row: Counts) -> int:
    return sum(row[fate] for fate in FATES_OF_ACCEPTED)


def _unseen(rows: Sequence[Counts], peek: Peeked | None) -> Iterator[str]:
    """Yield a sentence on pairs whose backlog queues the peek did not find."""
    if peek is None:
        return
    elsewhere = {row[LABEL] for row in rows if row["undecided"] and not peek.is_of(row[LABEL])}
    if elsewhere:
        yield (
            f"waiting and lost of {_names(sorted(elsewhere))}: the peek found no backlog queue of"
            " it; peek into its own secondary (--peek)"
        )


def _erased(named: Sequence[NamedMessage], peek: Peeked | None) -> Iterator[str]:
    """Yield a sentence on messages that a peek cannot find because their ids were erased."""
    unseen = [one for one in named if one.fate in UNSEEN]
    count = sum(is_erased_id(one.message_id) for one in unseen)
    if count and peek is not None:
        yield f"waiting and lost of {count:,} erased messages: a peek cannot find them without ids"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
