"""The pair that the doctor examines, and its findings: one line each, with what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from twinbus.console.backlog.queue_contents import QueueContents
from twinbus.console.terminal.table import counted, paint, visible
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.core.backlog import backlog_paths

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


@dataclass(slots=True)
class ExaminedPair:
    """The two namespaces, and what the doctor knows of them so far."""

    primary: Namespace
    secondary: Namespace
    count: int
    entity: str | None
    """An entity of the primary that the application sends to; None: the doctor creates one."""
    unsound: set[str] = field(default_factory=set)
    """Roles that do not answer or refuse the credential; the other one is examined further."""
    manages: dict[str, bool] = field(default_factory=dict)
    """By role: whether the credential may create and delete entities."""
    probes: dict[str, str] = field(default_factory=dict)
    """By role: the path of an entity that links may be attached to."""
    sizes: dict[str, int] = field(default_factory=dict)
    """By role: the maximum message size of the link."""
    refused_send: dict[str, bool] = field(default_factory=dict)
    """By role: whether the namespace refused the credential's send."""
    queues: list[QueueContents] | None = None
    """The backlog queues of the primary's label; None: not known."""

    @property
    def roles(self) -> dict[str, Namespace]:
        return {"primary": self.primary, "secondary": self.secondary}

    @property
    def sound(self) -> dict[str, Namespace]:
        return {role: one for role, one in self.roles.items() if role not in self.unsound}

    @property
    def backlog_paths(self) -> tuple[str, ...]:
        return backlog_paths(self.primary.label, self.count)


def refused(check: str, error: BaseException, level: Level = Level.FAIL) -> Finding:
    """Return the finding of a check that raised an error."""
    return Finding(check, level, str(error) or type(error).__name__)


def line_of(finding: Finding) -> str:
    """Return the finding as one line."""
    style = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}[finding.level]
    level = paint(f"{finding.level:<4}", style)
    do = f"; {visible(finding.do)}" if finding.do else ""
    return f"{level}  {finding.check:<{CHECK_WIDTH}}  {visible(finding.says)}{do}"


def verdict(findings: Sequence[Finding], fit: str = "fit to be paired") -> str:
    """Return the verdict over all findings as one line."""
    count = {level: sum(1 for f in findings if f.level is level) for level in Level}
    failed, warned, skipped = count[Level.FAIL], count[Level.WARN], count[Level.SKIP]
    counts = [f"{failed} failed"] if failed else []
    counts += [counted(warned, "warning")] if warned else []
    counts += [f"{skipped} not checked"] if skipped else []
    head = fit if not skipped else "no problem was found"
    head = f"not {fit}" if failed else head
    return f"{head}: {', '.join(counts)}" if counts else f"{head}: every check passed"


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return all findings as JSON."""
    return {
        "ok": all(finding.level is not Level.FAIL for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }
