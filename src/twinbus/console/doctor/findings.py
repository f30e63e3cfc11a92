"""Findings of the doctor: one line each, with what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from twinbus.console.terminal.table import paint, visible

CHECK_WIDTH = 22


class Level(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARN = "warn"
    """It works, with something to know or to repair."""
    FAIL = "fail"
    """A pair would not work, or not as guaranteed."""
    SKIP = "skip"
    """The credentials do not allow the check."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check and its result."""

    check: str
    level: Level
    says: str
    do: str = ""
    """What to do about it; empty: nothing."""


def line_of(finding: Finding) -> str:
    """Return the finding as one line."""
    style = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}[finding.level]
    level = paint(f"{finding.level:<4}", style)
    do = f"; {visible(finding.do)}" if finding.do else ""
    return f"{level}  {finding.check:<{CHECK_WIDTH}}  {visible(finding.says)}{do}"


def verdict(findings: Sequence[Finding]) -> str:
    """Return the verdict over all findings as one line."""
    count = {level: sum(1 for f in findings if f.level is level) for level in Level}
    failed, warned, skipped = count[Level.FAIL], count[Level.WARN], count[Level.SKIP]
    counts = [f"{failed} failed"] if failed else []
    counts += [f"{warned} warning{'s' if warned > 1 else ''}"] if warned else []
    counts += [f"{skipped} not checked"] if skipped else []
    head = "fit to be paired" if not skipped else "no problem was found"
    head = "not fit to be paired" if failed else head
    return f"{head}: {', '.join(counts)}" if counts else f"{head}: every check passed"


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return all findings as JSON."""
    return {
        "ok": all(finding.level is not Level.FAIL for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }
