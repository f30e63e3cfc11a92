"""The question of a plan (outages, traffic, settings to compare), and the outcome of a setting.

A pattern says how often the primary is down, and how long:

    2/year lognormal 40min           on average twice a year, median length 40 minutes
    exactly 2/year exponential 40min twice in every year, median length 40 minutes
    300/year fixed 5s                on average 300 times a year, each 5 seconds long
    west-europe-2025-11              an outage that happened, once in every year

The number in a year is Poisson unless it is exact, and outages are independent. A length is its
median, because people remember a usual outage rather than a mean that one long outage shifts. The
outages that happened are presets of `twinbus drill` too, with what Microsoft publishes of
Geo-Replication in an outage beside them.

Sampled figures have a standard error: the usual difference to a run with another seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from twinbus.cost.arithmetic import (
    DAY_S,
    YEAR_S,
    QuantityError,
    idle_syphon_operations,
    message_units,
    parse_duration,
    parse_frequency,
)
from twinbus.options import (
    BACKLOG_QUEUE_COUNT_MAX,
    FAILOVER_INTERVAL_MAX_S,
    PING_INTERVAL_MAX_S,
    SYPHON_POLL_MAX_S,
)

LENGTH_MAX_S: Final = 30 * DAY_S
"""Maximum length of a simulated outage. Without it one extreme draw of a wide lognormal would
dominate a mean, and a real outage of a month would be handled in another way."""

PER_YEAR_MAX: Final = 400
"""Somewhat more than one a day. A backlog does not help a primary that is down more often."""

SIGMA_MAX: Final = 3.0
"""At 3 one outage in six is longer than twenty times the median."""

GB: Final = 1024**3

QUEUE_MIN_BYTES: Final = GB
QUEUE_MAX_BYTES: Final = 80 * GB
"""Quotas of a queue: 1 to 5 GB, and up to 80 in Premium or with partitions."""

YEARS_MAX: Final = 1_000_000
SETTINGS_MAX: Final = 500
"""Limit of settings to compare; each is simulated for all years."""

GAP_MIN_S: Final = 0.01
"""Lower bound of the gap, which is a divisor; a smaller gap changes no figure measurably."""

DENSE: Final = 4
"""From this many sends of a client to an entity in a failover interval the model is exact."""


@dataclass(frozen=True, slots=True)
class KnownOutage:
    name: str
    when: str
    length_s: float
    source: str

    @property
    def pattern(self) -> str:
        """The outage once in every year, in the words of `parse_pattern`."""
        return f"exactly 1/year fixed {self.length_s:g}s"

    def added_units(self, rate_per_s: float, failover_s: float, size_bytes: int) -> int:
        """Return the operations that the backlog adds, at this rate, over the whole outage."""
        diverted = rate_per_s * max(0.0, self.length_s - failover_s)
        each = message_units(size_bytes, moved=True) - message_units(size_bytes)
        return round(diverted * each)


KNOWN_OUTAGES: Final = (
    KnownOutage(
        name="west-europe-2025-11",
        when="West Europe, 5 November 2025, 17:00 to 02:25 UTC",
        length_s=33_900.0,
        # The final review says "approximately 16:53"; the times are those of the first one.
        source=(
            "Azure status history, incident 2LGD-9VG: a subset of customers; Service Bus is one of"
            " the services it names"
        ),
    ),
)

FORM: Final = "like '2/year lognormal 40min' or 'exactly 2/year fixed 1h', or one of " + ", ".join(
    one.name for one in KNOWN_OUTAGES
)


class Lengths(StrEnum):
    LOGNORMAL = "lognormal"
    EXPONENTIAL = "exponential"
    FIXED = "fixed"


@dataclass(frozen=True, kw_only=True, slots=True)
class OutagePattern:
    """Outages of one kind."""

    per_year: float
    lengths: Lengths
    median_s: float
    sigma: float = 1.0
    """Of a lognormal length: the standard deviation of its logarithm."""
    is_exact: bool = False
    """Whether every year has exactly `per_year` outages."""

    def __post_init__(self) -> None:
        if not 0 <= self.per_year <= PER_YEAR_MAX:
            raise QuantityError(
                f"outages must be 0 to {PER_YEAR_MAX} a year; got {self.per_year:g}"
            )
        if self.is_exact and self.per_year != int(self.per_year):
            raise QuantityError(
                f"outages: exactly {self.per_year:g} a year is no whole number; leave `exactly` out"
            )
        if not 0 < self.median_s <= LENGTH_MAX_S:
            raise QuantityError(
                f"outages must be longer than 0 and at most {LENGTH_MAX_S // DAY_S} days; got"
                f" {self.median_s:g} s"
            )
        if not 0 < self.sigma <= SIGMA_MAX:
            raise QuantityError(
                f"sigma must be more than 0 and at most {SIGMA_MAX:g}; got {self.sigma:g}"
            )

    def __str__(self) -> str:
        exactly = "exactly " if self.is_exact else ""
        spread = f" (sigma {self.sigma:g})" if self.lengths is Lengths.LOGNORMAL else ""
        return f"{exactly}{self.per_year:g}/year {self.lengths} {self.median_s:g}s{spread}"


def parse_pattern(text: str, sigma: float = 1.0) -> OutagePattern:
    """Return the pattern in a text; QuantityError, in one line, if it cannot be read."""
    if known := known_outage(text):
        text = known.pattern
    words = text.split()
    is_exact = bool(words) and words[0].lower() == "exactly"
    if is_exact:
        del words[0]
    if len(words) < 3:
        raise QuantityError(f"outages must be {FORM}; got {text!r:.60}")
    kind = words[1].lower()
    if kind not in set(Lengths):
        kinds = ", ".join(Lengths)
        raise QuantityError(f"outages: lengths are {kinds}; got {words[1]!r:.40} in {text!r:.60}")
    return OutagePattern(
        per_year=float(parse_frequency(words[0], "outages")),
        lengths=Lengths(kind),
        median_s=float(parse_duration(" ".join(words[2:]), "the length of outages")),
        sigma=sigma,
        is_exact=is_exact,
    )


PROMOTION_S: Final = (300.0, 600.0)
"""Usual duration of a promotion of Geo-Replication, planned or forced, once a person started it."""

PROMOTION_SOURCE: Final = "Microsoft, Reliability in Azure Service Bus, 5 December 2025"


def known_outage(name: str) -> KnownOutage | None:
    """Return the outage of this name; None if no outage has it."""
    return next((one for one in KNOWN_OUTAGES if one.name == name.strip().lower()), None)


def sends_in_promotion(rate_per_s: float) -> tuple[int, int]:
    """Return how many sends come while a promotion of usual duration runs: fewest and most."""
    fewest, most = PROMOTION_S
    return round(rate_per_s * fewest), round(rate_per_s * most)


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


def _require(name: str, value: object, is_good: bool, limit: str) -> None:
    if not is_good:
        raise QuantityError(f"{name} must be {limit}; got {value!r}")
