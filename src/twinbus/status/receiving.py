"""Receivers and processors in a status: one row for each entity, however many there are. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from twinbus.wording import counted, duration, named, short

OPEN: Final = "open"
WAITING: Final = "waiting"
RECONNECTING: Final = "reconnecting"
NOT_READ: Final = "not read"
CLOSED: Final = "closed"
RECEIVING_STATES: Final = (NOT_READ, RECONNECTING, WAITING, OPEN, CLOSED)
"""What a receiver does at one side, worst first. `waiting`: its first link is being opened.
`not read`: the secondary's entity is not marked as a twin. `closed`: it reads this side no more."""

OTHERS: Final = "(others)"
"""The entity name under which those past a limit are summed; no entity has parentheses."""

LATE_S: Final = 60.0
"""A receiver may be without a link for this long before it needs attention."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivingSideStatus:
    """One side of the receivers of an entity."""

    states: dict[str, int] = field(default_factory=dict)
    """How many receivers are in each of RECEIVING_STATES; those that were closed are left out."""
    since_s: float | None = None
    """Seconds that the one that reconnects for the longest has no link; None: none reconnects."""
    error: str = ""
    """Why that one has no link, or why the side is not read."""
    delivered: int = 0
    """Messages that this side has brought."""
    reopened: int = 0
    """Links that ended or fell silent, and were followed by another."""
    silent: int = 0
    """How many of these the watchdog found: they brought nothing, and did not answer."""

    @property
    def state(self) -> str:
        """The worst state of a receiver here; `closed` if there is none."""
        return next((one for one in RECEIVING_STATES if self.states.get(one)), CLOSED)

    def __str__(self) -> str:
        lasts = "" if self.since_s is None else f" for {duration(self.since_s)}"
        parts = [
            f"{count} {state}{lasts if state == RECONNECTING else ''}"
            for state, count in self.states.items()
            if count
        ]
        return ", ".join(parts) or CLOSED


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiverStatus:
    """The paired and guarded receivers of one queue or subscription."""

    path: str
    receivers: int = 1
    """Those that are open; the counts below are also those of receivers that were closed."""
    sides: dict[str, ReceivingSideStatus] = field(default_factory=dict)
    """By `primary` and `secondary`; only those that they read."""
    buffered: int = 0
    """Messages that were received ahead."""
    handed_out: int = 0
    """Messages that the application got; without those that it received by their number."""
    second_copies: int = 0
    """Messages that were completed without being handed out (docs/twins.md)."""

    def __str__(self) -> str:
        sides = (
            f"{name} {side}, {side.delivered} received"
            + (f", opened again {side.reopened} times" if side.reopened else "")
            + (f" ({short(side.error)})" if side.error else "")
            for name, side in self.sides.items()
        )
        copies = f"; {self.second_copies} second copies not handed out"
        return (
            f"{counted(self.receivers, 'receiver')} of {self.path}: {'; '.join(sides)};"
            f" {self.handed_out} handed out" + (copies if self.second_copies else "")
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessorStatus:
    """The processors of one queue or subscription."""

    path: str
    running: int = 0
    """Those that receive, or finish what they have begun."""
    concurrency: int = 0
    """Handlers that may run at once in those."""
    handling: int = 0
    """Handlers that run now."""
    handled: int = 0
    """Messages whose handler returned and that were settled, also by processors that ended."""
    failed: int = 0
    """Messages whose handler raised or was cancelled, or whose settlement failed."""
    dead_lettered: int = 0
    """Messages whose handler raised DeadLetterError."""
    error: str = ""
    """Why the last one that ended did so by itself; empty: none did, or one runs again."""

    def __str__(self) -> str:
        what = f"{self.handling} of {self.concurrency} handlers run" if self.running else "stopped"
        dead = f", {self.dead_lettered} dead-lettered" if self.dead_lettered else ""
        why = f" ({short(self.error)})" if self.error else ""
        counts = f"{self.handled} handled, {self.failed} failed{dead}"
        return f"processor of {self.path}: {what}; {counts}{why}"


def summed_receivers(path: str, parts: Iterable[ReceiverStatus]) -> ReceiverStatus:
    """Return several receivers of one entity as one row."""
    found = list(parts)
    names = dict.fromkeys(name for one in found for name in one.sides)
    return ReceiverStatus(
        path=path,
        receivers=sum(one.receivers for one in found),
        sides={
            name: _summed_sides([one.sides[name] for one in found if name in one.sides])
            for name in names
        },
        buffered=sum(one.buffered for one in found),
        handed_out=sum(one.handed_out for one in found),
        second_copies=sum(one.second_copies for one in found),
    )


def _summed_sides(parts: list[ReceivingSideStatus]) -> ReceivingSideStatus:
    states: Counter[str] = Counter()
    for one in parts:
        states.update(one.states)
    # The one that has no link for the longest; one that is not read has an error and no time.
    worst = max(parts, key=lambda one: (one.since_s or 0.0, bool(one.error)))
    return ReceivingSideStatus(
        states={state: states[state] for state in RECEIVING_STATES if states[state]},
        since_s=worst.since_s,
        error=worst.error,
        delivered=sum(one.delivered for one in parts),
        reopened=sum(one.reopened for one in parts),
        silent=sum(one.silent for one in parts),
    )


def only_counts(one: ReceiverStatus) -> ReceiverStatus:
    """Return what stays of a receiver that was closed."""
    sides = {
        name: ReceivingSideStatus(
            delivered=side.delivered, reopened=side.reopened, silent=side.silent
        )
        for name, side in one.sides.items()
    }
    return ReceiverStatus(
        path=one.path,
        receivers=0,
        sides=sides,
        handed_out=one.handed_out,
        second_copies=one.second_copies,
    )


def summed_processors(path: str, parts: Iterable[ProcessorStatus]) -> ProcessorStatus:
    """Return several processors of one entity as one row."""
    found = list(parts)
    running = sum(one.running for one in found)
    return ProcessorStatus(
        path=path,
        running=running,
        concurrency=sum(one.concurrency for one in found),
        handling=sum(one.handling for one in found),
        handled=sum(one.handled for one in found),
        failed=sum(one.failed for one in found),
        dead_lettered=sum(one.dead_lettered for one in found),
        error="" if running else next((one.error for one in reversed(found) if one.error), ""),
    )


def receiving_troubles(receivers: Mapping[str, ReceiverStatus]) -> list[str]:
    """Return which receivers lack a side, and why; a short time without a link is left out."""
    late: dict[tuple[str, str], list[str]] = {}
    not_read: dict[str, list[str]] = {}
    for path, one in receivers.items():
        for name, side in one.sides.items():
            if (side.since_s or 0.0) >= LATE_S:
                late.setdefault((name, short(side.error)), []).append(path)
            elif side.states.get(NOT_READ):
                not_read.setdefault(short(side.error), []).append(path)
    found = [
        f"receivers of {named(paths)} have no link to the {name} for more than"
        f" {duration(LATE_S)}: {error}"
        for (name, error), paths in late.items()
    ]
    return found + [
        f"receivers of {named(paths)} do not read the secondary: {error}"
        for error, paths in not_read.items()
    ]


def processing_troubles(processors: Mapping[str, ProcessorStatus]) -> list[str]:
    """Return which processors have ended by themselves, and why."""
    return [
        f"the processor of {named([one.path])} has ended: {short(one.error)}"
        for one in processors.values()
        if one.error
    ]
