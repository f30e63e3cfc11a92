"""The effect of one outage on callers, pings and backlog, and of several in a row.

The whole primary is down from 0 to `length`. A client sends to each entity at a steady rate; its
first send to an entity after 0 comes within one *gap* (entities x clients / rate), uniformly
distributed. That send fails, and the timers of docs/failures.md run:

    0 ....... first send ... fails ... failed over .... ping, ping, ... ping answered
              | <- gap     | attempt | failover interval | every ping interval

A send raises if its caller's patience ends before the entity fails over and before the primary is
back. A send that still tries when the entity fails over is diverted. From then on all sends are
diverted until the first ping after the primary is back, up to one ping interval later.

All results are exact means over the entities and clients of a pair; nothing is sampled. The
functions take numbers, and arrays of numpy for many outages or years at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from twinbus.cost.quantities import QuantityError

GAP_MIN_S: Final = 0.01
"""Lower bound of the gap, which is a divisor; a smaller gap changes no figure measurably."""

DENSE: Final = 4
"""From this many sends of a client to an entity in a failover interval the model is exact."""


Numbers = Any
"""A float, or an array of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """The traffic, and how long a send is tried."""

    rate_per_s: float
    size_bytes: int
    entities: int = 1
    clients: int = 1
    """Sending processes, each with its own pair: each detects an outage by itself."""
    patience_s: float = 11.2
    """How long a send tries before it raises: the caller's `timeout`, or without one the back-off
    of three retries, 1.6 + 3.2 + 6.4 s."""
    failed_attempt_s: float = 0.0
    """How long an attempt takes to fail: 0 if the connection is refused, `attempt_timeout` if the
    primary hangs."""

    def __post_init__(self) -> None:
        _require("rate", self.rate_per_s, self.rate_per_s > 0, "more than 0 messages a second")
        _require("size", self.size_bytes, self.size_bytes >= 0, "0 bytes or more")
        _require("entities", self.entities, self.entities >= 1, "1 or more")
        _require("clients", self.clients, self.clients >= 1, "1 or more")
        _require("patience", self.patience_s, self.patience_s >= 0, "0 seconds or more")

    @property
    def links(self) -> int:
        """Entities times clients: each fails over and is pinged by itself."""
        return self.entities * self.clients

    @property
    def gap_s(self) -> float:
        """Time between two sends of one client to one entity."""
        return max(GAP_MIN_S, self.links / self.rate_per_s)

    def is_dense(self, failover_interval_s: float) -> bool:
        """Whether a client sends to an entity several times in a failover interval.

        If not, an outage that ends within the interval may still cause a failover, because no send
        shows that the primary is back. The model ignores that.
        """
        return self.gap_s <= max(failover_interval_s, self.patience_s) / DENSE


@dataclass(frozen=True, order=True, slots=True)
class Setting:
    """The options to choose."""

    failover_interval_s: float
    ping_interval_s: float
    queues: int


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one outage; times are means over all entities and clients."""

    failed_over: Numbers
    """The share of them that fails over."""
    pings: Numbers
    """Pings of one of them, including the answered one."""
    raised_s: Numbers
    """Seconds of traffic that raise."""
    diverted_s: Numbers
    """Seconds of traffic that are diverted."""
    overhang_s: Numbers
    """Of these, the time after the primary was back and before an answered ping."""


def effect_of(
    length_s: Numbers, failover_interval_s: float, ping_interval_s: float, traffic: Traffic
) -> Effect:
    """Return the effect of an outage of this length, without the limit of the backlog."""
    gap, patience = traffic.gap_s, traffic.patience_s
    # The failover comes at earliest + (0 .. gap), uniformly distributed.
    earliest = failover_interval_s + traffic.failed_attempt_s
    left = length_s - earliest
    failed_over = np.clip(left / gap, 0.0, 1.0)
    beyond = _mean_left(left, gap)
    period = ping_interval_s + traffic.failed_attempt_s
    counted = _pings_until(left, period, traffic)
    counted_later = _pings_until(left - gap, period, traffic)
    pings = (counted - counted_later) / gap
    held_s = pings * period - failed_over * traffic.failed_attempt_s
    # Of those that fail over: sends begun at most one patience before, and since 0.
    last = np.minimum(np.maximum(length_s, earliest), earliest + gap)
    turn = np.minimum(np.maximum(patience, earliest), last)
    waiting = ((turn * turn - earliest * earliest) / 2 + (last - turn) * patience) / gap
    return Effect(
        failed_over=failed_over,
        pings=pings,
        raised_s=_raised_s(length_s, earliest, traffic),
        diverted_s=held_s + waiting,
        overhang_s=held_s - beyond,
    )


def _mean_left(left_s: Numbers, gap_s: float) -> Numbers:
    """Return the mean of the positive rest of `left_s` after a uniform moment in the gap."""
    within = np.maximum(0.0, np.minimum(gap_s, left_s))
    return within * within / (2 * gap_s) + np.maximum(0.0, left_s - gap_s)


def _pings_until(left_s: Numbers, period_s: float, traffic: Traffic) -> Numbers:
    """Return the integral of the needed pings over failovers up to `left_s` before the end.

    The first ping begins one ping interval after the failover, each further one a period later. So
    (left + attempt) / period pings, rounded up, are needed.
    """
    begun = traffic.failed_attempt_s
    until = np.maximum(0.0, left_s) + begun

    def integral(until_s: Numbers) -> Numbers:
        whole = np.floor(until_s / period_s)
        return (whole + 1) * (until_s - whole * period_s / 2)

    return integral(until) - integral(begun)


def _raised_s(length_s: Numbers, earliest_s: float, traffic: Traffic) -> Numbers:
    """Return the seconds of traffic whose patience ends before failover and recovery."""
    gap, patience = traffic.gap_s, traffic.patience_s
    latest = earliest_s + gap
    exposed = np.maximum(0.0, length_s - patience)
    # A send that is tried until this failover does not raise.
    patient = np.minimum(np.maximum(patience, earliest_s), latest)
    width = latest - patient
    within = np.maximum(0.0, np.minimum(width, length_s - patient))
    saved = within * within / 2 + np.maximum(0.0, length_s - latest) * width
    return exposed - ((patient - earliest_s) * exposed + saved) / gap


@dataclass(frozen=True, slots=True)
class BacklogLevel:
    """The backlog after some outages of a year, in messages and seconds; at first empty."""

    waiting: Numbers = 0.0
    """Messages of the last outage that are not drained when the next one begins."""
    refused: Numbers = 0.0
    """Sends that raised because every backlog queue was full."""
    peak: Numbers = 0.0
    """Maximum number of messages in the backlog."""
    longest_drain_s: Numbers = 0.0
    """Longest time from recovery of the primary to an empty backlog."""


def next_level(
    before: BacklogLevel,
    diverted: Numbers,
    overhang_s: Numbers,
    gap_s: Numbers,
    *,
    traffic: Traffic,
    drain_per_s: float,
    capacity: Numbers,
) -> BacklogLevel:
    """Return the level after one more outage and `gap_s` seconds without one.

    The syphon drains from the moment the primary is back; later diverted messages still add.
    """
    after = overhang_s * traffic.rate_per_s
    rising = overhang_s * max(0.0, traffic.rate_per_s - drain_per_s)
    wanted = before.waiting + diverted - after + rising
    refused = np.maximum(0.0, np.minimum(diverted, wanted - capacity))
    held = before.waiting + diverted - refused
    drain_s = np.maximum(overhang_s, held / drain_per_s)
    return BacklogLevel(
        waiting=np.maximum(0.0, held - gap_s * drain_per_s),
        refused=before.refused + refused,
        peak=np.maximum(before.peak, wanted - refused),
        longest_drain_s=np.maximum(before.longest_drain_s, drain_s),
    )


def fullest_share(queues: int, senders: int) -> float:
    """Return the expected share of a backlog in its fullest queue.

    A sender keeps the queue that it chose, so queues fill unevenly. This is the normal
    approximation of a random choice, with Blom's mean of the largest of several.
    """
    even = 1 / queues
    largest = NormalDist().inv_cdf((queues - 0.375) / (queues + 0.25)) if queues > 1 else 0.0
    drawn = even + largest * math.sqrt(even * (1 - even) / senders)
    return min(1.0, max(math.ceil(senders / queues) / senders, drawn))


def _require(name: str, value: object, is_good: bool, limit: str) -> None:
    if not is_good:
        raise QuantityError(f"{name} must be {limit}; got {value!r}")
