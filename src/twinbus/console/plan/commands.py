"""`twinbus plan`: simulate with Spark and print the plan as text, JSON or a page."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from twinbus.console.cost.options import PlanOptions, PlanOutput
from twinbus.console.cost.price_books import book_of
from twinbus.console.plan.request import PlanInput, read
from twinbus.console.plan.sheet import plan_sheet
from twinbus.console.sheet.page import page_of
from twinbus.console.sheet.text import text_of
from twinbus.console.terminal.live_line import LiveLine
from twinbus.console.terminal.output import WrongUse, print_json
from twinbus.planning.plan import Plan, plan_of

if TYPE_CHECKING:
    from twinbus.cost.prices import PriceBook


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
    question = read(given)
    _writable(to)
    plan = _simulated(question, book, master)
    warnings = [*plan.warnings, *book.warnings(datetime.now(UTC).date())]
    if output is PlanOutput.JSON:
        document = {**plan.as_json(), "warnings": warnings}
        if to is None:
            print_json(document)
            return 0
        text = json.dumps(document, indent=2) + "\n"
    elif output is PlanOutput.HTML:
        text = page_of(plan_sheet(plan, warnings))
    else:
        text = text_of(plan_sheet(plan, warnings))
    if to is None:
        sys.stdout.write(text)
        return 0
    to.write_text(text, "utf-8")
    print(f"twinbus: the plan is in {to}", file=sys.stderr)
    return 0


def _simulated(asked: PlanInput, book: PriceBook, master: str | None) -> Plan:
    # Imported late: Spark takes a moment to load, and a usage error needs none of it.
    from twinbus.pipeline.planner import simulate
    from twinbus.pipeline.spark.session import LOCAL_MASTER, QUICK_START, spark_session

    question = asked.question
    with LiveLine() as line:
        line.say("starting Spark")
        settings = QUICK_START if master is None else None
        with spark_session(
            master=master or LOCAL_MASTER, announce=line.say, settings=settings
        ) as spark:
            line.say(f"{question.years:,} years under {len(question.settings)} settings, on Spark")
            outcomes = simulate(spark, question)
    return plan_of(
        question,
        outcomes,
        book,
        asked.limits,
        messaging_units=asked.messaging_units,
        rule=asked.rule,
    )


def _writable(to: Path | None) -> None:
    """Raise WrongUse if the file cannot be written: before the simulation, not after it."""
    if to is None:
        return
    try:
        to.touch()
    except OSError as error:
        raise WrongUse(
            f"the plan cannot be written to {to}: {error.strerror}; name another file with --to"
        ) from None
