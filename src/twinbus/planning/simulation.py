"""Monte Carlo of a pair: draws the outages of many years, and computes the model for all of them.

Years are simulated in blocks, each with random numbers of its own. So the same seed gives the same
figures wherever the blocks run: `simulate` runs them one after another in this process, and
`twinbus.pipeline.planner` on Spark.

Arrays of outages have a row for each outage of a year, in order, and a column for each year. A year
with fewer outages than another has outages of length 0 at its end, which have no effect.

The model (`effect_of`, `next_level`): the whole primary is down from 0 to `length`. A client sends
to each entity at a steady rate; its first send to an entity after 0 comes within one *gap*
(entities x clients / rate), uniformly distributed. That send fails, and the timers of
docs/failures.md run:

    0 ....... first send ... fails ... failed over .... ping, ping, ... ping answered
              | <- gap     | attempt | failover interval | every ping interval

A send raises if its caller's patience ends before the entity fails over and before the primary is
back. A send that still tries when the entity fails over is diverted. From then on all sends are
diverted until the first ping after the primary is back, up to one ping interval later. The results
are exact means over the entities and clients of a pair; nothing in the model is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from twinbus.cost.arithmetic import YEAR_S
from twinbus.planning.question import (
    LENGTH_MAX_S,
    Lengths,
    OutagePattern,
    PlanQuestion,
    SampledMean,
    Setting,
    SettingOutcome,
    Traffic,
)

Floats = NDArray[np.float64]

BLOCK_YEARS: Final = 1_000
"""Few enough for the memory, and enough for numpy to be faster than the loop around it."""

SUMMED: Final = tuple("outages outage_s failovers raised refused diverted pings overhang_s".split())
"""Figures of a year that are summed, and their squares too."""

COLUMNS: Final = 2 * len(SUMMED) + 2
"""Sums, sums of squares, and the years in which the backlog or its fullest queue was full."""

DIGITS: Final = 3
"""Decimals of a figure. What is smaller is an error of floating point, not a message."""

DRAIN_STEP: Final = 0.001
DRAIN_BINS: Final = 30_000
"""Drain times are counted in bins from 1 ms to 300 years, each 0.1 % wider than the one before: to
keep the times of all years for their percentiles would take gigabytes."""

Numbers = Any
"""A float, or an array of them."""


@dataclass(frozen=True, slots=True)
class BlockTotals:
    """The results of some blocks of years, for each setting."""

    sums: Floats
    """Blocks x settings x COLUMNS. Kept by block, because a sum depends on the order of adding."""
    peaks: Floats
    """2 x settings: the largest backlog and the longest drain."""
    drains: NDArray[np.int32]
    """Settings x DRAIN_BINS: years by their longest drain; those without a backlog do not count."""

    @classmethod
    def joined(cls, parts: Iterable[BlockTotals]) -> BlockTotals:
        """Return the totals of consecutive blocks together."""
        sums, peaks, drains = [], [], np.zeros(1, np.int32)
        for one in parts:
            sums.append(one.sums)
            peaks.append(one.peaks)
            drains = drains + one.drains
        return cls(np.concatenate(sums), np.maximum.reduce(peaks), drains)


def simulate(question: PlanQuestion) -> list[SettingOutcome]:
    """Return the outcome of each setting of the question, in their order."""
    return outcomes_of(question, simulate_blocks(question, range(block_count(question))))


def block_count(question: PlanQuestion) -> int:
    """Return the number of blocks; the last one may have fewer years."""
    return math.ceil(question.years / BLOCK_YEARS)


def simulate_blocks(question: PlanQuestion, blocks: Iterable[int]) -> BlockTotals:
    return BlockTotals.joined(
        simulate_years(question, *draw_outages(question, block)) for block in blocks
    )


def draw_outages(question: PlanQuestion, block: int) -> tuple[Floats, Floats]:
    """Return start and length of the outages of a block, in the order of their starts."""
    years = min(BLOCK_YEARS, question.years - block * BLOCK_YEARS)
    random = np.random.default_rng([question.seed, block])
    starts, lengths = [], []
    for pattern in question.patterns:
        if pattern.is_exact:
            counts = np.full(years, int(pattern.per_year))
        else:
            counts = random.poisson(pattern.per_year, years)
        happens = np.arange(counts.max())[:, np.newaxis] < counts
        starts.append(np.where(happens, random.random(happens.shape) * YEAR_S, YEAR_S))
        length_s = _draw_lengths(pattern, random, happens.shape)
        lengths.append(np.where(happens, np.minimum(length_s, LENGTH_MAX_S), 0.0))
    start_s, length_s = np.concatenate(starts), np.concatenate(lengths)
    order = np.argsort(start_s, axis=0, kind="stable")
    return np.take_along_axis(start_s, order, 0), np.take_along_axis(length_s, order, 0)


def _draw_lengths(
    pattern: OutagePattern, random: np.random.Generator, shape: tuple[int, ...]
) -> Floats:
    match pattern.lengths:
        case Lengths.LOGNORMAL:
            return random.lognormal(math.log(pattern.median_s), pattern.sigma, shape)
        case Lengths.EXPONENTIAL:
            return random.exponential(pattern.median_s / math.log(2), shape)
        case Lengths.FIXED:
            return np.full(shape, pattern.median_s)


def gaps_after(start_s: Floats, length_s: Floats) -> Floats:
    """Return the time from the end of each outage to the next one, or to the end of the year.

    An outage that begins inside another begins when that one ends, and so may delay the next.
    """
    gap_s = np.empty_like(start_s)
    end_s = np.zeros(start_s.shape[1])
    next_s = np.concatenate([start_s[1:], np.full_like(start_s[:1], YEAR_S)])
    for place in range(len(start_s)):
        end_s = np.maximum(end_s, start_s[place]) + length_s[place]
        gap_s[place] = np.maximum(0.0, next_s[place] - end_s)
    return gap_s


def simulate_years(question: PlanQuestion, start_s: Floats, length_s: Floats) -> BlockTotals:
    """Return the totals of years with these outages, under each setting."""
    traffic, gap_s = question.traffic, gaps_after(start_s, length_s)
    counts, down_s = np.count_nonzero(length_s, axis=0), length_s.sum(axis=0)
    parts = []
    for (failover_s, ping_s), settings in groupby(question.settings, _intervals):
        effect = effect_of(length_s, failover_s, ping_s, traffic)
        diverted = effect.diverted_s * traffic.rate_per_s
        queues = [setting.queues for setting in settings]
        capacity = _column(queues) * (question.queue_bytes / question.message_bytes)
        level = BacklogLevel(*np.zeros((4, len(queues), len(counts))))
        for place in range(len(length_s)):
            level = next_level(
                level,
                diverted[place],
                effect.overhang_s[place],
                gap_s[place],
                traffic=traffic,
                drain_per_s=question.drain_per_s,
                capacity=capacity,
            )
        figures = [
            counts,
            down_s,
            effect.failed_over.sum(axis=0),
            effect.raised_s.sum(axis=0) * traffic.rate_per_s,
            level.refused,
            diverted.sum(axis=0) - level.refused,
            effect.pings.sum(axis=0) * traffic.links,
            effect.overhang_s.sum(axis=0),
        ]
        shares = _column([fullest_share(count, traffic.links) for count in queues])
        is_queue_full = level.peak * shares > capacity / _column(queues)
        parts.append(_totals(figures, level, is_queue_full))
    sums, peaks, drains = zip(*parts, strict=True)
    return BlockTotals(
        np.concatenate(sums)[np.newaxis], np.concatenate(peaks, axis=1), np.concatenate(drains)
    )


def _totals(
    figures: Sequence[Floats], level: BacklogLevel, is_queue_full: NDArray[np.bool]
) -> tuple[Floats, Floats, NDArray[np.int32]]:
    """Return sums, peaks and drains of settings that differ only in their queues."""
    shape = level.refused.shape
    years = np.stack([np.broadcast_to(figure, shape) for figure in figures], axis=1).round(DIGITS)
    is_full = np.stack([level.refused > 0, is_queue_full], axis=1)
    sums = [years.sum(axis=2), np.square(years).sum(axis=2), is_full.sum(axis=2)]
    peaks = np.stack([level.peak.max(axis=1), level.longest_drain_s.max(axis=1)]).round(DIGITS)
    drains = np.stack([_histogram(drain_s) for drain_s in level.longest_drain_s])
    return np.concatenate(sums, axis=1), peaks, drains


def _histogram(drain_s: Floats) -> NDArray[np.int32]:
    steps = np.rint(np.log(drain_s[drain_s > 0] * 1_000) / DRAIN_STEP)
    bins = np.clip(steps, 0, DRAIN_BINS - 1).astype(np.int64)
    return np.bincount(bins, minlength=DRAIN_BINS).astype(np.int32)


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)[:, np.newaxis]


def _intervals(setting: Setting) -> tuple[float, float]:
    return setting.failover_interval_s, setting.ping_interval_s


def outcomes_of(question: PlanQuestion, totals: BlockTotals) -> list[SettingOutcome]:
    """Return the outcome of each setting, in their order."""
    columns = zip(
        question.settings, totals.sums.sum(axis=0), totals.peaks.T, totals.drains, strict=True
    )
    return [_outcome(question, *of_setting) for of_setting in columns]


def _outcome(
    question: PlanQuestion, setting: Setting, sums: Floats, peaks: Floats, drains: NDArray[np.int32]
) -> SettingOutcome:
    traffic, years = question.traffic, question.years
    totals, squares = sums[:-2].reshape(2, -1).tolist()
    full, queue_full = sums[-2:].tolist()
    peak_max, drain_max_s = peaks.tolist()
    means = {
        name: SampledMean.of(years, *pair)
        for name, *pair in zip(SUMMED, totals, squares, strict=True)
    }
    overhang_s, failovers = means.pop("overhang_s").mean, means["failovers"].mean
    return SettingOutcome(
        **means,
        setting=setting,
        full=SampledMean.of_share(years, round(full)),
        queue_full=SampledMean.of_share(years, round(queue_full)),
        polls=question.polls_a_year(setting.queues),
        detection_s=traffic.gap_s / 2 + traffic.failed_attempt_s + setting.failover_interval_s,
        recovery_s=overhang_s / failovers if failovers else 0.0,
        peak_max=peak_max,
        drain_p50_s=min(drain_max_s, _percentile(drains, 0.5)),
        drain_p95_s=min(drain_max_s, _percentile(drains, 0.95)),
        drain_max_s=drain_max_s,
    )


def _percentile(drains: NDArray[np.int32], share: float) -> float:
    """Return the drain time that this share of the years with a backlog does not exceed."""
    counted = np.cumsum(drains)
    if not counted[-1]:
        return 0.0
    return math.exp(int(np.searchsorted(counted, share * counted[-1])) * DRAIN_STEP) / 1_000


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
