"""The two namespaces that the doctor examines, and what was learnt of them so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinbus.console.backlog.queue_contents import QueueContents
from twinbus.console.doctor.findings import Finding, Level
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.core.backlog import backlog_paths

__all__ = ["ExaminedPair", "refused"]


@dataclass(slots=True)
class ExaminedPair:
    """The two namespaces, and what was learnt of them so far."""

    primary: Namespace
    secondary: Namespace
    count: int
    entity: str | None
    """An entity of the primary that the application sends to; None: the doctor makes its own."""
    reached: dict[str, bool] = field(default_factory=dict)
    manages: dict[str, bool] = field(default_factory=dict)
    """Role, and whether its credential may create and delete entities there."""
    probes: dict[str, str] = field(default_factory=dict)
    """Role, and the path of an entity that links may be attached to."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Role, and the largest message that the link takes."""
    refused_send: dict[str, bool] = field(default_factory=dict)
    """Role, and whether its credential was told that it may not send."""
    stocks: list[QueueContents] | None = None

    @property
    def roles(self) -> dict[str, Namespace]:
        return {"primary": self.primary, "secondary": self.secondary}

    @property
    def backlog_paths(self) -> tuple[str, ...]:
        return backlog_paths(self.primary.label, self.count)


def refused(check: str, error: BaseException, level: Level = Level.FAIL) -> Finding:
    """A check that ended in an error, in its words."""
    return Finding(check, level, str(error) or type(error).__name__)
