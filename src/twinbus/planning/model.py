"""What one outage does to callers, pings and backlog, and what several do one after another.

An outage takes the whole primary at 0 and gives it back at `length`. A client sends to each entity
at a steady pace; its first send to an entity after 0 comes within one *gap* (entities x clients /
rate), any moment of it as likely as another. That send fails, and the clock of SPEC 3 and 5 runs:

    0 ....... first send ... fails ... failed over .... ping, ping, ... ping answered
              | <- gap     | attempt | failover interval | every ping interval

A send raises if its caller's patience ends before the entity fails over and before the primary is
back. One that still tries when the entity fails over is diverted. From then on all are diverted
until the first ping after the primary is back, which is up to one ping interval later.

All results are means over the entities and clients of a pair, exact for such sends, with no
sampling of them. The same functions take numbers and columns of Spark: `Calculus` is what differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final, Protocol

from twinbus.cost.quantities import QuantityError

__all__ = [
    "PLAIN",
    "BacklogLevel",
    "Calculus",
    "Effect",
    "Setting",
    "Traffic",
    "effect_of",
    "fullest_share",
    "next_standing",
]

GAP_MIN_S: Final = 0.01
"""A gap of 0 would be divided by; below this it changes no figure that anyone could measure."""


DENSE: Final = 4
"""Sends of one client to one entity in a failover interval from which on the model is exact."""


class Calculus(Protocol):
    """The few functions of numbers that the model needs, of floats or of columns."""

    def most(self, first: Any, second: Any) -> Any:
        """The larger of two."""

    def least(self, first: Any, second: Any) -> Any:
        """The smaller of two."""

    def floor(self, value: Any) -> Any:
        """The next whole number that is not larger."""


class _Plain:
    def most(self, first: Any, second: Any) -> Any:
        return max(first, second)

    def least(self, first: Any, second: Any) -> Any:
        return min(first, second)

    def floor(self, value: Any) -> Any:
        return math.floor(value)


PLAIN: Final = _Plain()
"""For plain numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """What is sent, and how patiently."""

    rate_per_s: float
    size_bytes: int
    entities: int = 1
    clients: int = 1
    """Processes that send, each with a pair of its own: each finds an outage out by itself."""
    patience_s: float = 11.2
    """How long a send goes on trying before it raises: the caller's `timeout`; without one, the
    back-off of three retries, 1.6 + 3.2 + 6.4 s."""
    failed_attempt_s: float = 0.0
    """How long an attempt takes to fail: nothing where the connection is refused, and
    `attempt_timeout` where the primary hangs."""

    def __post_init__(self) -> None:
        _require("rate", self.rate_per_s, self.rate_per_s > 0, "more than 0 messages a second")
        _require("size", self.size_bytes, self.size_bytes >= 0, "0 bytes or more")
        _require("entities", self.entities, self.entities >= 1, "1 or more")
        _require("clients", self.clients, self.clients >= 1, "1 or more")
        _require("patience", self.patience_s, self.patience_s >= 0, "0 seconds or more")

    @property
    def links(self) -> int:
        """Entities times clients: each of them fails over, and is pinged, by itself."""
        return self.entities * self.clients

    @property
    def gap_s(self) -> float:
        """Between two sends of one client to one entity."""
        return max(GAP_MIN_S, self.links / self.rate_per_s)

    def is_dense(self, failover_interval_s: float) -> bool:
        """Whether an entity is sent to several times in a failover interval.

        If not, an outage that ends within the interval may still end in a failover, because no send
        comes to tell that the primary is back. The model leaves that out.
        """
        return self.gap_s <= max(failover_interval_s, self.patience_s) / DENSE


@dataclass(frozen=True, order=True, slots=True)
class Setting:
    """The options that are to be chosen."""

    failover_interval_s: float
    ping_interval_s: float
    queues: int


@dataclass(frozen=True, slots=True)
class Effect:
    """What one outage does; times are means over all entities and clients."""

    failed_over: Any
    """Which part of them fails over at all."""
    pings: Any
    """Pings of one of them, the answered one included."""
    raised_s: Any
    """So many seconds of traffic raise."""
    diverted_s: Any
    """So many seconds of traffic are diverted."""
    overhang_s: Any
    """Of these, the time after the primary was back and before a ping found out."""


def effect_of(
    length_s: Any,
    failover_interval_s: Any,
    ping_interval_s: Any,
    traffic: Traffic,
    calculus: Calculus = PLAIN,
) -> Effect:
    """What an outage of this length does, before the backlog's size comes into it."""
    most, least = calculus.most, calculus.least
    gap, patience = traffic.gap_s, traffic.patience_s
    # The failover comes at earliest + (0 .. gap), each moment as likely.
    earliest = failover_interval_s + traffic.failed_attempt_s
    left = length_s - earliest
    failed_over = most(0.0, least(1.0, left / gap))
    beyond = _mean_left(left, gap, calculus)
    period = ping_interval_s + traffic.failed_attempt_s
    counted = _pings_until(left, period, traffic, calculus)
    counted_later = _pings_until(left - gap, period, traffic, calculus)
    pings = (counted - counted_later) / gap
    held_s = pings * period - failed_over * traffic.failed_attempt_s
    # Of those that fail over: what was begun at most one patience before, or since 0.
    last = least(most(length_s, earliest), earliest + gap)
    turn = least(most(patience, earliest), last)
    waiting = ((turn * turn - earliest * earliest) / 2 + (last - turn) * patience) / gap
    return Effect(
        failed_over=failed_over,
        pings=pings,
        raised_s=_raised_s(length_s, earliest, traffic, calculus),
        diverted_s=held_s + waiting,
        overhang_s=held_s - beyond,
    )


def _mean_left(left_s: Any, gap_s: Any, calculus: Calculus) -> Any:
    """The mean of what is left of `left_s` after a moment in the gap, where something is."""
    within = calculus.most(0.0, calculus.least(gap_s, left_s))
    return within * within / (2 * gap_s) + calculus.most(0.0, left_s - gap_s)


def _pings_until(left_s: Any, period_s: Any, traffic: Traffic, calculus: Calculus) -> Any:
    """The sum, over all moments of failover up to `left_s` before the end, of the pings needed.

    One ping begins a ping interval after the failover, and each further one a period after the one
    before. So (left + attempt) / period, rounded up, are needed; this is the integral of it.
    """
    begun = traffic.failed_attempt_s
    until = calculus.most(0.0, left_s) + begun

    def integral(until_s: Any) -> Any:
        whole = calculus.floor(until_s / period_s)
        return (whole + 1) * (until_s - whole * period_s / 2)

    return integral(until) - integral(begun)


def _raised_s(length_s: Any, earliest_s: Any, traffic: Traffic, calculus: Calculus) -> Any:
    """Seconds of traffic whose patience ends before the failover and before the primary is back."""
    most, least = calculus.most, calculus.least
    gap, patience = traffic.gap_s, traffic.patience_s
    latest = earliest_s + gap
    exposed = most(0.0, length_s - patience)
    # A caller who is as patient as this failover is late is not raised to, so it ends no sooner.
    patient = least(most(patience, earliest_s), latest)
    width = latest - patient
    within = most(0.0, least(width, length_s - patient))
    saved = within * within / 2 + most(0.0, length_s - latest) * width
    return exposed - ((patient - earliest_s) * exposed + saved) / gap


@dataclass(frozen=True, slots=True)
class BacklogLevel:
    """Where the backlog stands after some outages of a year, in messages and seconds."""

    waiting: Any
    """In the backlog when the primary came back from the last, and not drained until the next."""
    refused: Any
    """Sends that raised because every backlog queue was full."""
    peak: Any
    """The most that was in the backlog at once."""
    longest_drain_s: Any
    """From the primary's return until the backlog was empty, in the worst case so far."""


def next_standing(
    before: BacklogLevel,
    diverted: Any,
    overhang_s: Any,
    gap_s: Any,
    *,
    traffic: Traffic,
    drain_per_s: float,
    capacity: Any,
    calculus: Calculus = PLAIN,
) -> BacklogLevel:
    """The standing after one more outage and `gap_s` seconds of peace after it.

    The syphon drains from the moment the primary is back; what is diverted after it still adds.
    """
    most, least = calculus.most, calculus.least
    after = overhang_s * traffic.rate_per_s
    rising = overhang_s * max(0.0, traffic.rate_per_s - drain_per_s)
    wanted = before.waiting + diverted - after + rising
    refused = most(0.0, least(diverted, wanted - capacity))
    held = before.waiting + diverted - refused
    drain_s = most(overhang_s, held / drain_per_s)
    return BacklogLevel(
        waiting=most(0.0, held - gap_s * drain_per_s),
        refused=before.refused + refused,
        peak=most(before.peak, wanted - refused),
        longest_drain_s=most(before.longest_drain_s, drain_s),
    )


def fullest_share(queues: int, senders: int) -> float:
    """Which part of a backlog its fullest queue is expected to hold.

    A sender keeps the queue that it drew (SPEC 3), so queues fill unevenly: by the normal
    approximation of drawing, with Blom's mean of the largest of several.
    """
    even = 1 / queues
    largest = NormalDist().inv_cdf((queues - 0.375) / (queues + 0.25)) if queues > 1 else 0.0
    drawn = even + largest * math.sqrt(even * (1 - even) / senders)
    return min(1.0, max(math.ceil(senders / queues) / senders, drawn))


def _require(name: str, value: object, is_good: bool, limit: str) -> None:
    if not is_good:
        raise QuantityError(f"{name} must be {limit}; got {value!r}")
