"""The two namespaces that the doctor examines, and what it knows of them so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinbus.console.backlog.queue_contents import QueueContents
from twinbus.console.doctor.findings import Finding, Level
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.core.backlog import backlog_paths


@dataclass(slots=True)
class ExaminedPair:
    """The two namespaces, and what the doctor knows of them so far."""

    primary: Namespace
    secondary: Namespace
    count: int
    entity: str | None
    """An entity of the primary that the application sends to; None: the doctor creates one."""
    reached: dict[str, bool] = field(default_factory=dict)
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
    def backlog_paths(self) -> tuple[str, ...]:
        return backlog_paths(self.primary.label, self.count)


def refused(check: str, error: BaseException, level: Level = Level.FAIL) -> Finding:
    """Return the finding of a check that raised an error."""
    return Finding(check, level, str(error) or type(error).__name__)
