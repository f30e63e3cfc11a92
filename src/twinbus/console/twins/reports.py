"""The state of a twin, and how `twinbus twins` and the doctor show it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from twinbus.console.output import paint
from twinbus.console.twins.reading import Held
from twinbus.pairing.core.twin_settings import TwinDifference, TwinSettings, summary
from twinbus.wording import counted, visible


class TwinState(StrEnum):
    OK = "ok"
    CREATED = "created"
    DIFFERS = "DIFFERS"
    """Messages could be lost, refused or hidden."""
    MISSING = "MISSING"
    UNFINISHED = "UNFINISHED"
    """`create` was killed."""
    REFUSED = "REFUSED"
    """An entity of that name is there and must not be used, or no twin may be made."""
    FAILED = "FAILED"
    LEFT_OVER = "LEFT OVER"
    """The primary has no such entity."""
    LEFT_OUT = "left out"


_WELL: Final = {TwinState.OK, TwinState.CREATED, TwinState.LEFT_OUT}


@dataclass(frozen=True, slots=True)
class TwinReport:
    """The state of one twin."""

    path: str
    state: TwinState
    kind: str = ""
    says: str = ""
    """Why, and which command to run; empty: nothing is to be said."""
    differences: tuple[TwinDifference, ...] = ()
    held: Held | None = None
    """None: not counted."""

    @property
    def needs_attention(self) -> bool:
        return self.state not in _WELL or any(one.is_error for one in self.differences)

    def document(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "kind": self.kind,
            "state": self.state.name.lower(),
            "says": self.says,
            "differences": [
                {"level": _level(one), "says": one.says, "create_adds_it": one.is_added}
                for one in self.differences
            ],
            "messages": None if self.held is None else asdict(self.held),
        }


@dataclass(frozen=True, slots=True)
class Adoption:
    """An entity of the secondary that may become a twin, and what it holds."""

    entity: TwinSettings
    there: TwinSettings
    held: Held
    report: TwinReport

    @property
    def path(self) -> str:
        return self.there.name


def adoption_lines(candidate: Adoption, primary: str, secondary: str) -> list[str]:
    """Return what a person must know to decide; the last two are the endpoints."""
    lines = [
        f"{secondary}: {visible(candidate.path)}, {summary(candidate.there)}",
        f"{primary}: {visible(candidate.path)}, {summary(candidate.entity)}",
        *difference_lines(candidate.report.differences),
    ]
    if old := candidate.there.user_metadata:
        lines.append(f"its user metadata stays after the mark: {visible(old)}")
    held = candidate.held
    dead = counted(held.dead_lettered, "dead letter")
    now = f"it holds {counted(held.waiting, 'message')} and {dead}"
    then = "as a twin it gets diverted messages, and what a queue holds is moved to the primary"
    return [*lines, f"{now}; {then}"]


def state_lines(found: Iterable[TwinReport]) -> list[str]:
    """Return a line for each twin, and below it a line for each difference."""
    reports = list(found)
    width = max((len(visible(one.path)) for one in reports), default=0)
    lines = []
    for one in reports:
        style = "red" if one.needs_attention else "green"
        parts = [one.kind, _held_text(one.held), visible(one.says)]
        says = "; ".join(filter(None, parts))
        state = paint(f"{one.state:<10}", style)
        lines.append(f"{state}  {visible(one.path):<{width}}  {says}".rstrip())
        lines += difference_lines(one.differences)
    return lines


def difference_lines(differences: Sequence[TwinDifference]) -> list[str]:
    return [f"  {_level(one)}: {visible(one.says)}" for one in differences]


def _level(difference: TwinDifference) -> str:
    return "error" if difference.is_error else "remark"


def _held_text(held: Held | None) -> str:
    if held is None or not (held.waiting or held.dead_lettered):
        return ""
    dead = f" and {counted(held.dead_lettered, 'dead letter')}" if held.dead_lettered else ""
    return f"holds {counted(held.waiting, 'message')}{dead}"


def mend(path: str, errors: Sequence[TwinDifference]) -> str:
    """Return the command that mends a twin; empty: it needs none."""
    if not errors:
        return ""
    create = f"`twinbus twins create {path}`"
    if all(one.is_added for one in errors):
        return f"{create} adds what is missing"
    return f"change the twin, or delete it while it is empty and run {create}"
