"""Reads the options of `twinbus plan`, simulates, and shows which settings to use and why."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from twinbus.console.cost import PlanOptions, PlanOutput
from twinbus.console.options import counting_rule, require_messaging_units
from twinbus.console.output import LiveLine, WrongUse, money
from twinbus.console.prices import book_of
from twinbus.console.sheet import BarRow, Bars, Sheet, Table, page_of, sections, text_of
from twinbus.cost.arithmetic import KB, parse_duration, parse_rate, parse_size
from twinbus.cost.estimate import COUNT_MAX
from twinbus.options import ATTEMPT_TIMEOUT_MAX_S, SendAvailabilityOptions
from twinbus.pairing.core.attempts import RETRIES_MIN
from twinbus.pipeline.reports.documents import ReportVerdict
from twinbus.planning.plan import Plan, PlanLimits, plan_of, raised_per_million
from twinbus.planning.question import (
    PROMOTION_S,
    PROMOTION_SOURCE,
    QUEUE_MAX_BYTES,
    PlanQuestion,
    SampledMean,
    SettingOutcome,
    Traffic,
    grid,
    parse_pattern,
    sends_in_promotion,
)
from twinbus.planning.simulation import simulate
from twinbus.wording import counted, duration

MESSAGE_MAX_BYTES: Final = 256 * KB
"""Of a Standard namespace, which is what a pair is priced as."""

PATTERNS_MAX: Final = 10
SEED_MAX: Final = 2**63 - 1

SPARK_YEARS: Final = 200_000
"""From here on one core takes longer for the usual settings than Spark needs to start."""


def run(
    given: PlanOptions,
    prices: Path | None,
    *,
    master: str | None,
    output: PlanOutput,
    to: Path | None,
) -> int:
    book = book_of(prices)
    rule = counting_rule(given.settlement)
    question, limits = _read(given)
    _require_writable(to)
    outcomes = _simulate(question, master)
    plan = plan_of(
        question, outcomes, book, limits, messaging_units=given.messaging_units, rule=rule
    )
    warnings = [*plan.warnings, *book.warnings(datetime.now(UTC).date())]
    if output == "json":
        indent = None if to is None and not sys.stdout.isatty() else 2
        text = json.dumps({**plan.as_json(), "warnings": warnings}, indent=indent) + "\n"
    else:
        sheet = plan_sheet(plan, warnings)
        text = page_of(sheet) if output == "html" else text_of(sheet)
    if to is None:
        sys.stdout.write(text)
        return 0
    to.write_text(text, "utf-8")
    print(f"twinbus: the plan is in {to}", file=sys.stderr)
    return 0


def _simulate(question: PlanQuestion, master: str | None) -> list[SettingOutcome]:
    what = f"{question.years:,} years under {len(question.settings)} settings"
    is_wide = question.years >= SPARK_YEARS and importlib.util.find_spec("pyspark") is not None
    with LiveLine() as line:
        if master is None and not is_wide:
            line.say(what)
            return simulate(question)
        # Imported late: Spark takes a moment to load.
        from twinbus.pipeline.planner import simulate_on_spark
        from twinbus.pipeline.spark.session import LOCAL_MASTER, spark_session

        line.say("starting Spark")
        with spark_session(master=master or LOCAL_MASTER, announce=line.say) as spark:
            line.say(f"{what}, on Spark")
            return simulate_on_spark(spark, question)


def _require_writable(to: Path | None) -> None:
    """Raise WrongUse if the file cannot be written: before the simulation, not after it."""
    if to is None:
        return
    try:
        to.touch()
    except OSError as error:
        raise WrongUse(
            f"the plan cannot be written to {to}: {error.strerror}; name another file with --to"
        ) from None


def _read(given: PlanOptions) -> tuple[PlanQuestion, PlanLimits]:
    """Return the options as numbers; WrongUse or QuantityError if one is not valid."""
    require_messaging_units(given.messaging_units)
    if not 0 <= given.seed <= SEED_MAX:
        raise WrongUse(f"--seed must be from 0 to {SEED_MAX}; got {given.seed}")
    if not 1 <= len(given.outages) <= PATTERNS_MAX:
        raise WrongUse(f"--outages may be given 1 to {PATTERNS_MAX} times")
    traffic = _traffic(given)
    limit_per_s = float(parse_rate(given.rate_limit, "--rate-limit"))
    if given.shared_limit and limit_per_s <= traffic.rate_per_s:
        raise WrongUse(
            f"--rate-limit {given.rate_limit} is shared with {given.rate} of new messages and"
            " leaves nothing for the backlog; name a higher one, or leave --shared-limit out"
        )
    question = PlanQuestion(
        traffic=traffic,
        patterns=tuple(parse_pattern(pattern, given.sigma) for pattern in given.outages),
        settings=grid(
            _times(given.failover_interval, "--failover-interval"),
            _times(given.ping_interval, "--ping-interval"),
            [_count(part) for part in given.queues.split(",")],
        ),
        queue_bytes=parse_size(given.backlog_size, "--backlog-size", most=QUEUE_MAX_BYTES),
        drain_per_s=limit_per_s - (traffic.rate_per_s if given.shared_limit else 0.0),
        poll_s=float(parse_duration(given.poll, "--poll")),
        syphons=given.syphons,
        years=given.years,
        seed=given.seed,
    )
    limits = PlanLimits(full_share=given.full_years, raised_per_million=given.raised_per_million)
    return question, limits


def _traffic(given: PlanOptions) -> Traffic:
    for name, count in (("--entities", given.entities), ("--clients", given.clients)):
        if not 1 <= count <= COUNT_MAX:
            raise WrongUse(f"{name} must be from 1 to {COUNT_MAX:,}; got {count}")
    hang_s = float(parse_duration(given.hang, "--hang", most=ATTEMPT_TIMEOUT_MAX_S))
    return Traffic(
        rate_per_s=float(parse_rate(given.rate, "--rate")),
        size_bytes=parse_size(given.size, "--size", most=MESSAGE_MAX_BYTES),
        entities=given.entities,
        clients=given.clients,
        patience_s=(
            default_patience_s(hang_s)
            if given.patience is None
            else float(parse_duration(given.patience, "--patience"))
        ),
        failed_attempt_s=hang_s,
    )


def default_patience_s(attempt_s: float) -> float:
    """How long an attempt and the SDK's three retries last, with the back-offs between them."""
    options = SendAvailabilityOptions()
    waits: float = sum(
        min(options.retry_backoff_max_s, options.retry_backoff_factor_s * 2.0**retry)
        for retry in range(1, RETRIES_MIN + 1)
    )
    return waits + (RETRIES_MIN + 1) * attempt_s


def _times(text: str, name: str) -> list[float]:
    return [float(parse_duration(part, name)) for part in text.split(",")]


def _count(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit() and len(text) < 10):
        raise WrongUse(
            f"--queues must be whole numbers with commas between, like 5,10; got {text!r}"
        )
    return int(text)


HEADINGS: Final = (
    *("failover", "ping", "queues", "raised a year", "backlog full", "diverted"),
    *("drain 50 %", "drain 95 %", "pings", "polls", "added a year"),
)

VIEWS: Final = {
    "failover_interval_s": "Failover intervals",
    "ping_interval_s": "Ping intervals",
    "queues": "Backlog queues",
}


def plan_sheet(plan: Plan, warnings: Sequence[str]) -> Sheet:
    misses = plan.advice.misses
    setting = plan.advice.outcome.setting
    return Sheet(
        title="plan",
        headline=(
            f"Fail over after {_interval(setting.failover_interval_s)}, ping every"
            f" {_interval(setting.ping_interval_s)}, backlog in {counted(setting.queues, 'queue')}"
        ),
        verdict=ReportVerdict.BAD if misses else ReportVerdict.GOOD,
        alerts=(
            *(f"warning: {text}" for text in warnings),
            *(f"not met: {miss}" for miss in misses),
        ),
        lines=(
            (
                f"failover_interval={setting.failover_interval_s:g}"
                f"  ping_primary_interval={setting.ping_interval_s:g}"
                f"  backlog_queue_count={setting.queues}"
            ),
            plan.advice.reason,
        ),
        charts=tuple(_charts(plan)),
        tables=tuple(_tables(plan)),
        sections=sections(("Assumed", plan.assumptions)),
    )


def _tables(plan: Plan) -> Iterator[Table]:
    best = plan.advice.outcome
    yield Table(title="A year with it", rows=tuple(_facts(plan)))
    for title, found in _neighbours(plan):
        yield Table(
            title=f"{title}, the rest as above (* recommended)",
            columns=("", *HEADINGS),
            rows=tuple(("*" if one is best else "", *_cells(plan, one)) for one in found),
            numbers=frozenset(range(1, len(HEADINGS) + 1)),
            on_page=False,
        )
    yield Table(
        title="Every setting",
        columns=HEADINGS,
        rows=tuple(_cells(plan, one) for one in plan.outcomes),
        numbers=frozenset(range(len(HEADINGS))),
        marked=frozenset(index for index, one in enumerate(plan.outcomes) if one is best),
        in_text=False,
    )


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    """What happens in a year with the recommended setting."""
    best, question, spent = plan.advice.outcome, plan.question, plan.advised_money
    currency = spent.paired.currency
    patterns = ", ".join(map(str, question.patterns))
    in_all = f"{duration(best.outage_s.mean)} ± {duration(best.outage_s.error)}"
    yield "outages", f"{patterns}: {_amount(best.outages)} a year, {in_all} in all"
    yield (
        "failed over",
        f"{_amount(best.failovers)} times a year, after {best.detection_s:.1f} s on average",
    )
    yield "back", f"{best.recovery_s:.1f} s after the primary, on average"
    yield "raised", f"{_plainly(best.raised_total)} sends a year in all, of which"
    yield (
        "  before failover",
        f"{_amount(best.raised)}, {raised_per_million(best, plan.question):.3g} of a million",
    )
    yield "  backlog full", f"{_amount(best.refused)}; {_chance(best.full)}"
    yield "one queue full", f"{_chance(best.queue_full)}; senders then change to another"
    yield (
        "diverted",
        f"{_amount(best.diverted)} messages a year, at most {best.peak_max:,.0f} at once",
    )
    yield (
        "drained",
        (
            f"the longest of a year takes {_interval(best.drain_p50_s)} (half of the years),"
            f" {_interval(best.drain_p95_s)} (95 %), {_interval(best.drain_max_s)} (the worst)"
        ),
    )
    yield "pings, polls", f"{_amount(best.pings)} and {best.polls:,} a year"
    yield "the pair", _year(spent.paired_year, currency, spent.paired.not_priced)
    yield "it adds", _year(spent.added_year, currency, ())
    geo = spent.geo_replication
    yield "Premium Geo-Replication", _year(spent.geo_replication_year, currency, geo.not_priced)
    yield "  its promotion", _promotion(question.traffic.rate_per_s)
    yield "simulated", f"{question.years:,} years, seed {question.seed}; ± is the standard error"


def _promotion(rate_per_s: float) -> str:
    """What Geo-Replication needs before it takes sends in an outage."""
    fewest_min, most_min = (seconds / 60 for seconds in PROMOTION_S)
    fewest, most = sends_in_promotion(rate_per_s)
    return (
        f"a person starts it; then {fewest_min:g} to {most_min:g} min ({PROMOTION_SOURCE}), in"
        f" which {fewest:,} to {most:,} sends come"
    )


def _neighbours(plan: Plan) -> Iterator[tuple[str, list[SettingOutcome]]]:
    """The settings that differ from the recommended one in one option only."""
    best = plan.advice.outcome.setting
    for option, title in VIEWS.items():
        here = {option: getattr(best, option)}
        found = [one for one in plan.outcomes if replace(one.setting, **here) == best]
        if len(found) > 1:
            yield title, found


def _cells(plan: Plan, outcome: SettingOutcome) -> tuple[str, ...]:
    setting = outcome.setting
    spent = plan.money[plan.outcomes.index(outcome)]
    return (
        _interval(setting.failover_interval_s),
        _interval(setting.ping_interval_s),
        f"{setting.queues}",
        _plainly(outcome.raised_total),
        f"{outcome.full.mean:.2%}",
        _plainly(outcome.diverted.mean),
        _interval(outcome.drain_p50_s),
        _interval(outcome.drain_p95_s),
        _plainly(outcome.pings.mean),
        f"{outcome.polls:,}",
        money(spent.added_year, spent.paired.currency),
    )


def _charts(plan: Plan) -> Iterator[Bars]:
    views = dict(_neighbours(plan))
    best = plan.advice.outcome
    charts: tuple[tuple[str, str, Callable[[Any], float], Callable[[float], str]], ...] = (
        (
            "Sends that raise before the failover in a year, by failover interval",
            "failover_interval_s",
            lambda one: one.raised.mean,
            _plainly,
        ),
        ("Years with a full backlog", "queues", lambda one: one.full.mean, "{:.2%}".format),
        (
            "From the primary's return to the first send, by ping interval",
            "ping_interval_s",
            lambda one: one.recovery_s,
            _interval,
        ),
    )
    for title, option, amount, words in charts:
        rows = []
        for one in views.get(VIEWS[option], ()):
            value = getattr(one.setting, option)
            name = counted(value, "queue") if option == "queues" else _interval(value)
            rows.append(_bar(one is best, name, amount(one), words(amount(one))))
        if rows:
            yield Bars(title, tuple(rows), in_text=option != "ping_interval_s")
    spent = plan.advised_money
    totals = {
        "namespace alone": spent.alone.total * 12,
        "pair": spent.paired_year,
        "Geo-Replication": spent.geo_replication_year,
    }
    bars = (
        _bar(name == "pair", name, float(total), money(total, spent.paired.currency))
        for name, total in totals.items()
    )
    yield Bars("Money of a year", tuple(bars))


def _bar(is_marked: bool, name: str, amount: float, label: str) -> BarRow:
    return BarRow(name, (("marked" if is_marked else "plain", amount),), label)


def _amount(value: SampledMean) -> str:
    error = f" ± {_plainly(value.error)}" if value.error else ""
    return _plainly(value.mean) + error


def _chance(value: SampledMean) -> str:
    """A probability with its error; not seen does not mean impossible."""
    if not value.mean:
        return f"in none of the years (below {value.error:.2%}, most likely)"
    return f"in {value.mean:.2%} ± {value.error:.2%} of the years"


def _plainly(value: float) -> str:
    """A count without decimals where it is large."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _interval(seconds: float) -> str:
    """A time span; below a minute with decimals."""
    return f"{seconds:.3g} s" if seconds < 60 else duration(seconds)


def _year(total: Decimal, currency: str, not_priced: Sequence[str]) -> str:
    lacks = f", without {', '.join(not_priced)}: not priced" if not_priced else ""
    return f"{money(total, currency)} a year{lacks}"
