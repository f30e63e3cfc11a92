"""The question to the planner, and the outcome of each setting. Plain data.

Sampled figures carry their standard error: the usual difference to a run with another seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from twinbus.cost.arithmetic import idle_syphon_operations
from twinbus.cost.quantities import YEAR_S, QuantityError
from twinbus.options import (
    BACKLOG_QUEUE_COUNT_MAX,
    FAILOVER_INTERVAL_MAX_S,
    PING_INTERVAL_MAX_S,
    SYPHON_POLL_MAX_S,
)
from twinbus.planning.model import Setting, Traffic
from twinbus.planning.outages import OutagePattern

GB: Final = 1024**3

QUEUE_MIN_BYTES: Final = GB
QUEUE_MAX_BYTES: Final = 80 * GB
"""Quotas of a queue: 1 to 5 GB, and up to 80 in Premium or with partitions."""

YEARS_MAX: Final = 1_000_000
SETTINGS_MAX: Final = 500
"""Limit of settings to compare; each is simulated for all years."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanQuestion:
    """All inputs of the simulation: the same question always has the same answer."""

    traffic: Traffic
    patterns: tuple[OutagePattern, ...]
    settings: tuple[Setting, ...]
    queue_bytes: int = 5 * GB
    """Quota of one backlog queue."""
    drain_per_s: float = 250.0
    """Messages per second that the syphon forwards."""
    poll_s: float = SYPHON_POLL_MAX_S
    syphons: int = 1
    """Processes that run a syphon; each polls every backlog queue."""
    years: int = 4_000
    seed: int = 7

    def __post_init__(self) -> None:
        _within("years", self.years, 1, YEARS_MAX)
        _within("syphons", self.syphons, 1, 10_000)
        _within("the poll", self.poll_s, 1, SYPHON_POLL_MAX_S, " seconds")
        if not QUEUE_MIN_BYTES <= self.queue_bytes <= QUEUE_MAX_BYTES:
            raise QuantityError(
                f"the size of a backlog queue must be 1 to {QUEUE_MAX_BYTES // GB} GB; got"
                f" {self.queue_bytes / GB:g} GB"
            )
        if self.drain_per_s <= 0:
            raise QuantityError(
                f"the rate limit leaves {self.drain_per_s:g} messages a second for the backlog, so"
                " that it is never drained; it must be more than the rate that it is shared with"
            )
        if not self.patterns:
            raise QuantityError("outages must be named, like '2/year lognormal 40min'")

    @property
    def message_bytes(self) -> int:
        """Bytes of one message in a backlog queue."""
        return max(1, self.traffic.size_bytes)

    @property
    def messages_a_year(self) -> float:
        return self.traffic.rate_per_s * YEAR_S

    def polls_a_year(self, queues: int) -> int:
        """Return the receives of an idle syphon in a year."""
        each = idle_syphon_operations(queue_count=queues, poll_s=self.poll_s, period_s=YEAR_S)
        return each * self.syphons


def grid(
    failover_s: Sequence[float], ping_s: Sequence[float], queues: Sequence[int]
) -> tuple[Setting, ...]:
    """Return every combination in order, checked against the ranges of the options."""
    for value in failover_s:
        _within("failover interval", value, 0, FAILOVER_INTERVAL_MAX_S, " seconds")
    for value in ping_s:
        _within("ping interval", value, 1, PING_INTERVAL_MAX_S, " seconds")
    for value in queues:
        _within("queues", value, 1, BACKLOG_QUEUE_COUNT_MAX)
    settings = sorted(
        {Setting(float(a), float(b), c) for a in failover_s for b in ping_s for c in queues}
    )
    if not 0 < len(settings) <= SETTINGS_MAX:
        raise QuantityError(
            f"{len(settings):,} settings to compare, and 1 to {SETTINGS_MAX} can be; name other"
            " failover intervals, ping intervals or queues"
        )
    return tuple(settings)


@dataclass(frozen=True, slots=True)
class SampledMean:
    """A mean over simulated years."""

    mean: float
    error: float
    """Its standard error in three digits; 0 if the values do not vary."""

    @classmethod
    def of(cls, count: int, total: float, squares: float) -> SampledMean:
        """Return the mean of `count` values from their sum and the sum of their squares."""
        mean = total / count
        variance = max(0.0, squares / count - mean * mean)
        return cls(mean, float(f"{math.sqrt(variance / count):.3g}"))

    @classmethod
    def of_share(cls, count: int, hits: int) -> SampledMean:
        """Return a probability. With 0 or `count` hits its error is 3 / count (rule of three)."""
        share = hits / count
        if hits in (0, count):
            return cls(share, 3 / count)
        return cls(share, math.sqrt(share * (1 - share) / count))


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingOutcome:
    """A year with one setting; counts are means over the simulated years."""

    setting: Setting
    outages: SampledMean
    outage_s: SampledMean
    """Total time that the primary is down."""
    failovers: SampledMean
    """Outages in which an entity fails over, for an average client."""
    raised: SampledMean
    """Sends that raise before the failover."""
    refused: SampledMean
    """Sends that raise because the backlog is full."""
    diverted: SampledMean
    """Messages that the backlog takes."""
    pings: SampledMean
    full: SampledMean
    """Probability that every backlog queue is full at some time of a year."""
    queue_full: SampledMean
    """Probability that the fullest queue is full."""
    polls: int
    detection_s: float
    """Mean time from the start of an outage to the failover; the maximum is one gap more."""
    recovery_s: float
    """Time from recovery of the primary to the answered ping, after a failover."""
    peak_max: float
    """Maximum number of messages in the backlog, in any year."""
    drain_p50_s: float
    """Longest drain of a year; the median over the years with a backlog."""
    drain_p95_s: float
    drain_max_s: float

    @property
    def raised_total(self) -> float:
        """Sends that raise, before the failover or because the backlog is full."""
        return self.raised.mean + self.refused.mean


def _within(name: str, value: float, low: float, high: float, unit: str = "") -> None:
    if not low <= value <= high:
        raise QuantityError(f"{name} must be from {low:g} to {high:,.0f}{unit}; got {value:g}")
