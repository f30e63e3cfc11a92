"""`twinbus plan`: read the options, simulate, print the plan as text, JSON or a page."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from twinbus.console.cost.options import PlanOptions, PlanOutput
from twinbus.console.cost.price_books import book_of
from twinbus.console.options import counting_rule, require_messaging_units
from twinbus.console.plan.sheet import plan_sheet
from twinbus.console.sheet.page import page_of
from twinbus.console.sheet.sheet import text_of
from twinbus.console.terminal.output import LiveLine, WrongUse, print_json
from twinbus.cost.estimate import COUNT_MAX
from twinbus.cost.quantities import KB, QuantityError, parse_duration, parse_rate, parse_size
from twinbus.options import ATTEMPT_TIMEOUT_MAX_S, SendAvailabilityOptions
from twinbus.pairing.core.attempts import RETRIES_MIN
from twinbus.planning.advice import PlanLimits
from twinbus.planning.model import Traffic
from twinbus.planning.outages import parse_pattern
from twinbus.planning.outcomes import QUEUE_MAX_BYTES, PlanQuestion, SettingOutcome, grid
from twinbus.planning.plan import plan_of
from twinbus.planning.simulation import simulate

T = TypeVar("T")

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
    """Simulate and print; returns the exit status."""
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
        document = {**plan.as_json(), "warnings": warnings}
        if to is None:
            print_json(document)
            return 0
        text = json.dumps(document, indent=2) + "\n"
    elif output == "html":
        text = page_of(plan_sheet(plan, warnings))
    else:
        text = text_of(plan_sheet(plan, warnings))
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
    """Return the options as numbers; WrongUse, in one line, if one is not valid."""
    try:
        return _numbers(given)
    except QuantityError as error:
        raise WrongUse(str(error)) from None


def _numbers(given: PlanOptions) -> tuple[PlanQuestion, PlanLimits]:
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
            _each("--failover-interval", given.failover_interval, _seconds),
            _each("--ping-interval", given.ping_interval, _seconds),
            _each("--queues", given.queues, _count),
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


def _each(name: str, text: str, one: Callable[[str, str], T]) -> list[T]:
    return [one(part, name) for part in text.split(",")]


def _seconds(text: str, name: str) -> float:
    return float(parse_duration(text, name))


def _count(text: str, name: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit() and len(text) < 10):
        raise WrongUse(f"{name} must be whole numbers with commas between, like 5,10; got {text!r}")
    return int(text)
