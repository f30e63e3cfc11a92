"""Monte Carlo of a pair on Spark: outages are drawn for many years, and the model is worked out.

Every random number is a hash of the seed, the year, the pattern and the number of the outage, so
that the same seed gives the same years on any number of partitions and machines. (Spark's own
`rand` begins anew in each partition, and its figures change with them.) A normal number is made of
two of them by Box and Muller: exact, in built-in expressions, without a table of coefficients.

A row is one year under one setting, with its outages as an array: a backlog that is not drained
when the next outage comes is carried over by folding the array, without a shuffle. What is summed
is whole thousandths, because a sum of fractions depends on the order in which they come.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from twinbus.cost.quantities import YEAR_S
from twinbus.errors import TwinbusError
from twinbus.pipeline.spark.background_job import failure_of
from twinbus.pipeline.spark.session import session_for_tables
from twinbus.planning import model
from twinbus.planning.outages import LENGTH_MAX_S, Lengths, OutagePattern
from twinbus.planning.outcomes import PlanQuestion, SampledMean, SettingOutcome

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

THOUSANDTHS: Final = 1_000

_COUNTED: Final = tuple("outages outage failovers raised refused diverted pings overhang".split())
"""Columns of a year that are added up, in thousandths."""

_OF_AN_OUTAGE: Final = ("length_s", "failed_over", "raised", "diverted", "pings", "overhang_s")

_PURPOSE_COUNT, _PURPOSE_START, _PURPOSE_LENGTH, _PURPOSE_ANGLE = range(4)
"""So that the numbers of one outage have nothing to do with each other."""


class SimulationError(TwinbusError):
    """Spark gave up on the simulation; the text says why."""


COLUMNS: Final = model.Calculus(
    most=lambda first, second: F.greatest(_column(first), _column(second)),
    least=lambda first, second: F.least(_column(first), _column(second)),
    floor=lambda value: F.floor(_column(value)).cast("double"),
)
"""The calculus of columns."""


def simulate(spark: SparkSession, question: PlanQuestion) -> list[SettingOutcome]:
    """What becomes of every setting of the question, in their order."""
    years = lived_years(drawn_years(session_for_tables(spark), question), question)
    try:
        rows = totals(years).collect()  # at most SETTINGS_MAX of them
    except Exception as error:  # the errors of Spark and of its gateway share no class
        raise SimulationError(f"Spark could not simulate: {failure_of(error)}") from error
    found = {_setting(row): _outcome(row, question) for row in rows}
    return [found[setting] for setting in question.settings]


def drawn_years(spark: SparkSession, question: PlanQuestion) -> DataFrame:
    """One row for each year: its outages in order, with length and the peace after each."""
    years = spark.range(0, question.years, 1)
    drawn = [
        _drawn(pattern, number, question.seed) for number, pattern in enumerate(question.patterns)
    ]
    return with_peace(years.select("id", F.array_sort(F.concat(*drawn)).alias("drawn")))


def with_peace(years: DataFrame) -> DataFrame:
    """The outages `drawn` for each year, in order, with length and the peace after each.

    One that begins inside another begins when that ends, and so may push back the next.
    """

    def end_after(ends: Column, outage: Column) -> Column:
        before_s = F.coalesce(F.get(ends, F.size(ends) - 1), F.lit(0.0))
        end_s = F.greatest(before_s, outage["start_s"]) + outage["length_s"]
        return F.concat(ends, F.array(end_s))

    def at_peace(outage: Column, place: Column) -> Column:
        following = F.coalesce(F.get("drawn", place + 1)["start_s"], F.lit(float(YEAR_S)))
        peace = following - F.get("ends", place)
        return F.struct(
            outage["length_s"].alias("length_s"), F.greatest(F.lit(0.0), peace).alias("peace_s")
        )

    ended = years.withColumn(
        "ends", F.aggregate("drawn", F.array().cast("array<double>"), end_after)
    )
    return ended.select("id", F.transform("drawn", at_peace).alias("outages"))


def lived_years(years: DataFrame, question: PlanQuestion) -> DataFrame:
    """Every year under every setting: what was raised, diverted, pinged, and the backlog."""
    traffic = question.traffic
    rate = traffic.rate_per_s

    def effect(outage: Column) -> Column:
        found = model.effect_of(
            outage["length_s"],
            F.col("failover_interval_s"),
            F.col("ping_interval_s"),
            traffic,
            COLUMNS,
        )
        return F.struct(
            outage["length_s"].alias("length_s"),
            outage["peace_s"].alias("peace_s"),
            found.failed_over.alias("failed_over"),
            (found.raised_s * rate).alias("raised"),
            (found.diverted_s * rate).alias("diverted"),
            (found.pings * traffic.links).alias("pings"),
            found.overhang_s.alias("overhang_s"),
        )

    def fold(standing: Column, outage: Column) -> Column:
        after = model.next_level(
            model.BacklogLevel(*(standing[name] for name in model.BacklogLevel.__slots__)),
            outage["diverted"],
            outage["overhang_s"],
            outage["peace_s"],
            traffic=traffic,
            drain_per_s=question.drain_per_s,
            capacity=F.col("capacity"),
            calculus=COLUMNS,
        )
        return F.struct(
            *(getattr(after, name).alias(name) for name in model.BacklogLevel.__slots__)
        )

    nothing = F.struct(*(F.lit(0.0).alias(name) for name in model.BacklogLevel.__slots__))
    under = years.select(
        "outages", F.inline(_intervals(question)).alias("failover_interval_s", "ping_interval_s")
    )
    felt = under.select(
        "failover_interval_s", "ping_interval_s", F.transform("outages", effect).alias("outages")
    )
    summed = felt.select(
        "*",
        F.size("outages").alias("outage_count"),
        *(_sum(name).alias(f"{name}_sum") for name in _OF_AN_OUTAGE),
    )
    backlogs = F.inline(_backlogs(question)).alias("queues", "capacity", "fullest_share")
    stood = summed.select("*", backlogs).select(
        "*", F.aggregate("outages", nothing, fold).alias("standing")
    )
    standing = F.col("standing")
    peak = standing["peak"]
    return stood.select(
        "failover_interval_s",
        "ping_interval_s",
        "queues",
        _thousandths(F.col("outage_count")).alias("outages"),
        _thousandths(F.col("length_s_sum")).alias("outage"),
        _thousandths(F.col("failed_over_sum")).alias("failovers"),
        _thousandths(F.col("raised_sum")).alias("raised"),
        _thousandths(standing["refused"]).alias("refused"),
        _thousandths(F.col("diverted_sum") - standing["refused"]).alias("diverted"),
        _thousandths(F.col("pings_sum")).alias("pings"),
        _thousandths(F.col("overhang_s_sum")).alias("overhang"),
        (standing["refused"] > 0).alias("full"),
        (peak * F.col("fullest_share") > F.col("capacity") / F.col("queues")).alias("queue_full"),
        _thousandths(peak).alias("peak"),
        _thousandths(standing["longest_drain_s"]).alias("drain"),
    )


def totals(years: DataFrame) -> DataFrame:
    """One row for each setting: sums, and percentiles of the years."""
    drains = F.when(F.col("drain") > 0, F.col("drain"))
    return years.groupBy("failover_interval_s", "ping_interval_s", "queues").agg(
        F.count("*").alias("years"),
        *(F.sum(name).alias(name) for name in _COUNTED),
        # For errors only, of which three digits are kept: the order of adding does not show.
        *(
            F.sum(F.col(name).cast("double") * F.col(name)).alias(f"{name}_squares")
            for name in _COUNTED
        ),
        F.count_if("full").alias("full"),
        F.count_if("queue_full").alias("queue_full"),
        F.max("peak").alias("peak_max"),
        F.percentile(drains, F.lit([0.5, 0.95])).alias("drains"),
        F.max("drain").alias("drain_max"),
    )


def _drawn(pattern: OutagePattern, number: int, seed: int) -> Column:
    """The outages of one pattern in the year `id`: an array of start and length."""

    def chance(purpose: int, outage: Column) -> Column:
        return _chance(seed, F.lit(number), F.col("id"), F.lit(purpose), outage)

    if pattern.is_exact:
        count = F.lit(int(pattern.per_year))
    else:
        reached = F.lit(_poisson_steps(pattern.per_year))
        drawn = chance(_PURPOSE_COUNT, F.lit(0))
        count = F.size(F.filter(reached, lambda step: step < drawn))

    def outage(place: Column) -> Column:
        length = _length(pattern, chance(_PURPOSE_LENGTH, place), chance(_PURPOSE_ANGLE, place))
        return F.struct(
            (chance(_PURPOSE_START, place) * YEAR_S).alias("start_s"),
            F.least(length, F.lit(float(LENGTH_MAX_S))).alias("length_s"),
        )

    # A sequence of 1 to 0 would count down, so it begins at 0 and that one is left out.
    places = F.filter(F.sequence(F.lit(0), count), lambda place: place > 0)
    return F.transform(places, outage)


def _length(pattern: OutagePattern, first: Column, second: Column) -> Column:
    match pattern.lengths:
        case Lengths.LOGNORMAL:
            normal = F.sqrt(F.log(first) * -2.0) * F.cos(second * (2 * math.pi))
            return F.exp(normal * pattern.sigma) * pattern.median_s
        case Lengths.EXPONENTIAL:
            return F.log(first) * (-pattern.median_s / math.log(2))
        case Lengths.FIXED:
            return F.lit(float(pattern.median_s))


def _chance(seed: int, *which: Column) -> Column:
    """A number between 0 and 1, neither of them, that belongs to `which` and the seed for ever."""
    hashed = F.xxhash64(F.lit(seed), *which)
    return (F.shiftrightunsigned(hashed, 11) + F.lit(0.5)) / F.lit(float(2**53))


def _poisson_steps(mean: float) -> list[float]:
    """The chance of at most 0, 1, 2, ... outages, as far as a number of 53 bits can tell."""
    steps, share, total = [], math.exp(-mean), 0.0
    for count in range(int(mean + 12 * math.sqrt(mean) + 30)):
        total += share
        steps.append(total)
        share *= mean / (count + 1)
    return steps


def _intervals(question: PlanQuestion) -> Column:
    """Every pair of intervals that is asked for."""
    pairs = sorted({(one.failover_interval_s, one.ping_interval_s) for one in question.settings})
    return F.array(*(F.struct(*map(F.lit, pair)) for pair in pairs))


def _backlogs(question: PlanQuestion) -> Column:
    """Every number of backlog queues that is asked for, with the messages that all of them take
    and the part that the fullest is expected to have."""
    counts = sorted({one.queues for one in question.settings})
    room = question.queue_bytes / question.message_bytes
    senders = question.traffic.links
    return F.array(
        *(
            F.struct(F.lit(count), F.lit(count * room), F.lit(model.fullest_share(count, senders)))
            for count in counts
        )
    )


def _sum(name: str) -> Column:
    return F.aggregate("outages", F.lit(0.0), lambda total, outage: total + outage[name])


def _thousandths(value: Column) -> Column:
    return F.round(value * THOUSANDTHS).cast("long")


def _column(value: Any) -> Column:
    return F.lit(float(value)) if isinstance(value, int | float) else value


def _setting(row: Row) -> model.Setting:
    return model.Setting(row["failover_interval_s"], row["ping_interval_s"], row["queues"])


def _outcome(row: Row, question: PlanQuestion) -> SettingOutcome:
    years = row["years"]
    traffic = question.traffic

    def estimate(name: str) -> SampledMean:
        total, squares = row[name] / THOUSANDTHS, row[f"{name}_squares"] / THOUSANDTHS**2
        return SampledMean.of(years, total, squares)

    def value(name: str) -> float:
        return float(row[name] or 0) / THOUSANDTHS

    sampled: dict[str, Any] = {
        name: estimate(name)
        for name in ("outages", "failovers", "raised", "refused", "diverted", "pings")
    }
    failovers = sampled["failovers"].mean
    setting = _setting(row)
    drains = row["drains"] or (0.0, 0.0)
    return SettingOutcome(
        **sampled,
        setting=setting,
        outage_s=estimate("outage"),
        full=SampledMean.of_share(years, row["full"]),
        queue_full=SampledMean.of_share(years, row["queue_full"]),
        polls=question.polls_a_year(setting.queues),
        detection_s=traffic.gap_s / 2 + traffic.failed_attempt_s + setting.failover_interval_s,
        recovery_s=estimate("overhang").mean / failovers if failovers else 0.0,
        peak_max=value("peak_max"),
        drain_p50_s=drains[0] / THOUSANDTHS,
        drain_p95_s=drains[1] / THOUSANDTHS,
        drain_max_s=value("drain_max"),
    )
