"""Statuses as tests of the judgement and of what renders it make them up."""

from __future__ import annotations

from typing import Any

from twinbus.status.document import (
    BacklogQueueState,
    BacklogQueueStatus,
    EntityState,
    EntityStatus,
    PairStatus,
    SideState,
    SideStatus,
    SyphonQueueStatus,
    SyphonStatus,
)

NOW = 1_794_873_600.0
QUEUE = "contoso/x-servicebus-transfer/0"


def entity(path: str = "orders", state: str = "healthy", **changes: Any) -> EntityStatus:
    given = {
        "since_s": None, "reason": "", "last_error": "", "forced": False, "frozen": False,
        "sent": 0, "diverted": 0, "raised": 0, "answered_pings": 0, **changes,
    }  # fmt: skip
    return EntityStatus(path=path, state=EntityState(state), **given)


def queue(state: BacklogQueueState = "in rotation", **changes: Any) -> BacklogQueueStatus:
    return BacklogQueueStatus("q", state, **changes)


def side(state: str, reason: str) -> dict[str, SideStatus]:
    return {"primary": SideStatus("sb://contoso", SideState(state), reason)}


def status(*entities: EntityStatus, **changes: Any) -> PairStatus:
    given = {
        "protected": True, "searching": None, "verified_at": NOW - 125,
        "backlog_queues": {f"contoso/x-servicebus-transfer/{n}": queue() for n in range(2)},
        "entities": {one.path: one for one in entities}, **changes,
    }  # fmt: skip
    return PairStatus("sb://contoso", "sb://contoso-dr", **given)


def syphon(**changes: Any) -> SyphonStatus:
    return SyphonStatus(queues={QUEUE: SyphonQueueStatus(**changes)})
