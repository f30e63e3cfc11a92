"""What the doctor finds: one line each, with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from twinbus.console.terminal.table import paint, visible

__all__ = ["Finding", "Level", "document", "line_of", "verdict"]

CHECK_WIDTH = 22


class Level(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    """It works, with something to know or to mend."""
    FAIL = "fail"
    """A pair would not work, or not as promised."""
    SKIP = "skip"
    """It could not be checked with what the doctor was given."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check and how it came out."""

    check: str
    level: Level
    says: str
    do: str = ""
    """What to do about it; empty where there is nothing to do."""


def line_of(finding: Finding) -> str:
    """The finding as the one line that a person reads."""
    style = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}[finding.level]
    level = paint(f"{finding.level:<4}", style)
    do = f"; {visible(finding.do)}" if finding.do else ""
    return f"{level}  {finding.check:<{CHECK_WIDTH}}  {visible(finding.says)}{do}"


def verdict(findings: Sequence[Finding]) -> str:
    """All findings in a line."""
    count = {level: sum(1 for f in findings if f.level is level) for level in Level}
    failed, warned, skipped = count[Level.FAIL], count[Level.WARN], count[Level.SKIP]
    words = [f"{failed} failed"] if failed else []
    words += [f"{warned} to look at"] if warned else []
    words += [f"{skipped} not checked"] if skipped else []
    head = "fit to be paired" if not skipped else "nothing was found against pairing them"
    head = "not fit to be paired" if failed else head
    return f"{head}: {', '.join(words)}" if words else f"{head}: every check passed"


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """All findings for a program."""
    return {
        "ok": all(finding.level is not Level.FAIL for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }
