"""Twins in a status: what each of them is and holds, as far as that is known. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from twinbus.status.document import (
    TWIN_NOT_USED,
    TWIN_PULLED,
    EntityState,
    EntityStatus,
    HostStatus,
    PairStatus,
    SyphonStatus,
    TwinContents,
    TwinStatus,
)
from twinbus.wording import counted, duration, named, short

LEFT_IN_TWIN_S: Final = 900.0
"""Messages may wait in a twin this long while its entity is healthy."""

STALE_S: Final = 1_800.0
"""What a twin held at an older listing is not known any more; a syphon lists every 15 minutes."""

NOT_CHECKED: Final = "not checked here"


@dataclass(frozen=True, kw_only=True, slots=True)
class TwinRow:
    """One twin as people see it: its state by the senders, and what it held by a listing."""

    path: str
    state: str = NOT_CHECKED
    verified: bool = False
    """Whether its mark was read, by a sender's pair or in a listing that is not too old."""
    reason: str = ""
    """Why it is not in use."""
    waiting: int | None = None
    active: int | None = None
    scheduled: int | None = None
    deferred: int | None = None
    """None: not known."""
    waits_s: float | None = None
    consumers_only: str = ""
    """Why only its consumers empty it; empty: the syphon does too, or it is not known."""

    @property
    def level(self) -> str:
        """`healthy` only if the mark was read and nothing is left over; `none`: not known."""
        is_left = bool(self.waiting) and (self.waits_s or 0.0) >= LEFT_IN_TWIN_S
        if self.reason or is_left:
            return "attention"
        return "healthy" if self.verified else "none"

    @property
    def words(self) -> str:
        """The state in one phrase."""
        if self.reason:
            return f"{self.state}: {short(self.reason)}"
        return self.state if self.verified else f"{self.state}, not verified"


def twin_rows(status: HostStatus) -> list[TwinRow]:
    """Return the twins of a pair or a syphon, those that hold messages first."""
    contents = {path: one for path, one in status.twins.items() if is_fresh(one)}
    rows = {path: _row(path, None, one) for path, one in contents.items()}
    if isinstance(status, PairStatus):
        by_key = {path.lower(): path for path in contents}
        for entity in status.entities.values():
            if entity.twin is not None:
                path = by_key.get(entity.path.lower(), entity.path)
                rows[path] = _row(path, entity.twin, contents.get(path))
    return sorted(rows.values(), key=lambda row: (-(row.waiting or 0), row.path.lower()))


def _row(path: str, twin: TwinStatus | None, held: TwinContents | None) -> TwinRow:
    is_listed = held is not None and held.waiting is not None
    found = held or TwinContents()
    return TwinRow(
        path=path,
        state=NOT_CHECKED if twin is None else twin.state,
        verified=is_listed if twin is None else twin.verified or is_listed,
        reason="" if twin is None else twin.reason,
        waiting=found.waiting,
        active=found.active,
        scheduled=found.scheduled,
        deferred=found.deferred,
        waits_s=found.waits_s,
        consumers_only=found.consumers_only,
    )


def twins_text(twins: Mapping[str, TwinContents]) -> str:
    """Return how many messages wait in twins, and which of them only consumers receive."""
    fresh = {path: one for path, one in twins.items() if is_fresh(one)}
    waiting = sum(one.waiting or 0 for one in fresh.values())
    parts = []
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        parts.append(f"{counted(waiting, 'message')} {verb} in twins")
    left = [
        f"{path} ({one.waiting:,}, {one.consumers_only})"
        for path, one in fresh.items()
        if one.waiting and one.consumers_only
    ]
    if left:
        parts.append(f"only consumers empty {named(left)}")
    if unknown := [path for path, one in twins.items() if path not in fresh or one.waiting is None]:
        parts.append(f"it is not known what {named(unknown)} {_hold(unknown)}")
    return "; ".join(parts)


def twin_troubles(status: HostStatus) -> Iterator[str]:
    """Name twins that hold messages although their entities are healthy, and unusable ones."""
    late = [
        path
        for path, one in status.twins.items()
        if (one.waits_s or 0.0) >= LEFT_IN_TWIN_S and _is_healthy(one.topic or path, status)
    ]
    if late:
        yield (
            f"messages wait in twins for more than {duration(LEFT_IN_TWIN_S)} although the entities"
            f" are healthy: {named(late)}; have their consumers receive from the secondary too"
        )
    if isinstance(status, PairStatus):
        yield from _unused(status.entities.values())


def _unused(entities: Iterable[EntityStatus]) -> Iterator[str]:
    """Name twins that the options name and that take no messages; entities share a reason."""
    by_reason: dict[str, list[str]] = {}
    for one in entities:
        twin = one.twin
        if twin is not None and twin.named and twin.state in (TWIN_NOT_USED, TWIN_PULLED):
            by_reason.setdefault(f"{twin.state} ({short(twin.reason)})", []).append(one.path)
    for reason, paths in by_reason.items():
        which = "the twin of" if len(paths) == 1 else "the twins of"
        yield f"{which} {named(paths)}: {reason}; what is diverted goes to the backlog"


def is_fresh(one: TwinContents) -> bool:
    """Whether a listing is new enough to say what a twin holds."""
    return (one.listed_s or 0.0) < STALE_S


def _hold(paths: list[str]) -> str:
    return "holds" if len(paths) == 1 else "hold"


def _is_healthy(path: str, status: HostStatus) -> bool:
    """Whether an entity was healthy for long, as far as this host knows."""
    if isinstance(status, SyphonStatus):
        states = status.queues.values()
        return not any("primary" in one.problems or path in one.held for one in states)
    key = path.lower()
    known = next((one for one in status.entities.values() if one.path.lower() == key), None)
    if known is None:
        return True
    is_new = known.since_s is not None and known.since_s < LEFT_IN_TWIN_S
    return known.state is EntityState.HEALTHY and not is_new
