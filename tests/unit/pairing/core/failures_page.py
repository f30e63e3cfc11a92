"""docs/failures.md: its tables as the code has them. Run as a program it rewrites them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.end_to_end import fault_table
from twinbus.servicebus.failures import CLASSES, CONDITIONS, FailureMeaning, FailureRow

PAGE = Path(__file__).parents[4] / "docs" / "failures.md"


def tables() -> dict[str, str]:
    """Each table that is written from the code, by the name of its place in the page."""
    return {
        "faults": fault_table.markdown(),
        "backlog": fault_table.backlog_markdown(),
        "classes": _judged("exception", CLASSES),
        "conditions": _judged("condition", CONDITIONS),
    }


def _judged(title: str, rows: Mapping[str, FailureRow]) -> str:
    by_meaning: dict[FailureMeaning, dict[str, list[str]]] = {}
    for name, row in rows.items():
        by_meaning.setdefault(row.meaning, {}).setdefault(row.reason, []).append(f"`{name}`")
    lines = [f"| says that the entity | counts | retried | {title}: because |", "|---|---|---|---|"]
    for meaning, by_reason in by_meaning.items():
        counts, retried = ("yes" if it else "" for it in (meaning.counts, meaning.retried))
        named = "<br>".join(f"{', '.join(names)}: {why}" for why, names in by_reason.items())
        lines.append(f"| {meaning.value} | {counts} | {retried} | {named} |")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """The page with every table as it should be."""
    for name, table in tables().items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, found, rest = page.partition(begin)
        assert found, f"docs/failures.md has no place for the table of {name}"
        page = before + begin + table + end + rest.partition(end)[2]
    return page


def state_tables() -> dict[str, dict[str, str]]:
    """The cells of the state tables by situation and event; an event without a row has none."""
    cells: dict[str, dict[str, str]] = {}
    situations: list[str] = []
    for line in PAGE.read_text().partition("## The states")[2].splitlines():
        if not line.startswith("| "):
            continue
        event, *rest = [cell.strip() for cell in line.strip("| ").split("|")]
        if event == "event":
            situations = rest
            continue
        for situation, cell in zip(situations, rest, strict=True):
            cells.setdefault(situation, {})[event] = cell
    return cells


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
