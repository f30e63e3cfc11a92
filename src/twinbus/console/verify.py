"""`twinbus verify`: runs the checks, prints a table, and writes the facts to a file."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from twinbus.console import ATTENTION, COULD_NOT
from twinbus.console.declaration import runs_to_its_end
from twinbus.console.namespaces import explained
from twinbus.console.output import LiveLine, Output, show, table_lines
from twinbus.cost.prices import standard
from twinbus.namespace.namespace import Namespace
from twinbus.verify.run import Fact, Likeness, VerifyPlan, VerifyReport, verify
from twinbus.verify.scratch import clean
from twinbus.wording import counted, visible

COLUMNS = ("SIDE", "CHECK", "ANSWER", "DETAILS")
SHOWN_MAX = 120
"""Characters of an answer in the table; the file has all."""


@runs_to_its_end
async def run(
    sides: dict[str, Namespace], plan: VerifyPlan, facts: Path, output: Output, *, is_clean: bool
) -> int:
    """Verify the namespaces, or clean them; return the exit status. `facts` gets all facts."""
    if is_clean:
        return await _clean(sides, output)
    with LiveLine() as line, explained(sides["primary"], "verifying", "Manage"):
        line.say("starting the reference")
        report = await verify(
            sides, plan, lambda fact: line.say(f"{fact.side}: {fact.check} {fact.likeness}")
        )
    document = _document(report, plan)
    await asyncio.to_thread(facts.write_text, json.dumps(document, indent=2) + "\n")
    show(output, document, _lines(report, document, facts))
    if report.left_behind:
        return COULD_NOT
    return ATTENTION if any(f.likeness is Likeness.DIFFERENT for f in report.facts) else 0


async def _clean(sides: dict[str, Namespace], output: Output) -> int:
    deleted: dict[str, list[str]] = {}
    for side, namespace in sides.items():
        with explained(namespace, "deleting scratch entities", "Manage"):
            deleted[side] = await clean(namespace)
    lines = [f"{side}: {counted(len(paths), 'entity', 'entities')} deleted"
             for side, paths in deleted.items()]  # fmt: skip
    return show(output, {"deleted": deleted}, lines)


def _document(report: VerifyReport, plan: VerifyPlan) -> dict[str, Any]:
    cost = standard().meter("operations").cost_past_free(report.operations)
    return {
        "like": plan.profile.name,
        "operations_at_most": report.operations,
        "cost_at_most_usd": None if cost is None else float(cost),
        "left_behind": report.left_behind,
        "facts": [asdict(fact) for fact in report.facts],
    }


def _lines(report: VerifyReport, document: dict[str, Any], file: Path) -> list[str]:
    rows = [(fact.side, fact.check, str(fact.likeness), _details(fact)) for fact in report.facts]
    different = sum(fact.likeness is Likeness.DIFFERENT for fact in report.facts)
    cost = document["cost_at_most_usd"]
    price = "not priced" if cost is None else f"${cost:.4f}"
    return [
        *table_lines(COLUMNS, rows),
        "",
        (
            f"{counted(different, 'difference')} from {document['like']};"
            f" at most {counted(report.operations, 'operation')}, {price} past the free ones;"
            f" facts in {file}"
        ),
        *(f"left behind: {what}; run verify --clean" for what in report.left_behind),
    ]


def _details(fact: Fact) -> str:
    if fact.likeness is not Likeness.DIFFERENT:
        return fact.why or fact.asks
    name = fact.differs[0]
    got, wanted = (json.dumps(one.get(name)) for one in (fact.observed, fact.expected))
    return visible(f"{name}: {got}, not {wanted}")[:SHOWN_MAX]
