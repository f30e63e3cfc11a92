"""Twins of entities: which may be used, when their marks are read, and how a call chooses. Pure.

    wanted --its mark is read--> used, verified                  the namesake has the mark
                             --> used, not verified              no right to read; named in `twins`
                             --> not used                        no right to read; no mark; missing

A mark is read again every few minutes, and at once when the twin was pulled. A secondary that does
not answer changes nothing: a twin that was verified stays in use, and a new one waits.

The twin is tried first, like a backlog queue that only its entity may use; if it does not take a
message, the backlog queues do.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from twinbus.pairing.core.backlog import CUTS_MAX, FIRST_PULL_S, KeptChoice, Rotation
from twinbus.pairing.core.secondary import jittered
from twinbus.servicebus.twins import is_listed, is_named, twin_mark
from twinbus.status.document import (
    TWIN_NOT_USED,
    TWIN_PULLED,
    TWIN_UNKNOWN,
    TWIN_USED,
    TwinStatus,
)

READ_EVERY_S: Final = 300.0
"""Time between two readings of a mark: each is a request to the administration API."""

READ_TOGETHER_S: Final = READ_EVERY_S / 2
"""Marks that are due within this time are read with one that is due now. Each for itself, those of
many twins would soon be read at many times, and a listing has the marks of a hundred."""

READ_AGAIN_S: Final = 30.0
"""Time after a reading that was not answered, and the least time between two readings."""


@dataclass(slots=True)
class _Twin:
    """What is known of the namesake of one entity."""

    due_at: float
    """When its mark is read next."""
    read_at: float = -math.inf
    is_used: bool = False
    is_verified: bool = False
    reason: str = ""
    """Why it is not used; empty: it is, or its mark was not read yet."""


@dataclass(frozen=True, slots=True)
class TwinNews:
    """A twin is used from now on, or no longer."""

    path: str
    is_used: bool
    is_verified: bool
    reason: str


class Twins:
    """The twins of one pair's entities; those that may be used are in the rotation."""

    def __init__(
        self,
        listed: Collection[str] | None,
        label: str,
        rotation: Rotation,
        backlog_paths: Collection[str] = (),
    ) -> None:
        """`listed` is the option `twins`; `label` is that of the primary."""
        self._listed = listed
        self._label = label
        self._rotation = rotation
        self._backlog_paths = frozenset(path.lower() for path in backlog_paths)
        self._twins: dict[str, _Twin] = {}
        self._is_closed = False

    def want(self, path: str, now: float) -> bool:
        """Whether an entity is to have a twin; its mark is then read as soon as possible."""
        # A backlog queue of this pair is no twin, whatever its mark.
        if not is_listed(self._listed, path) or path.lower() in self._backlog_paths:
            return False
        if path not in self._twins:
            self._twins[path] = _Twin(due_at=now)
        return True

    def forget(self, path: str) -> None:
        """The pair has forgotten the entity."""
        if self._twins.pop(path, None) is not None:
            self._rotation.drop_twin(path)

    def close(self) -> None:
        """Use no twin any more."""
        self._is_closed = True
        for path in [*self._twins]:
            self.forget(path)

    def is_verified(self, path: str) -> bool:
        twin = self._twins.get(path)
        return twin is not None and twin.is_verified

    def due(self, now: float) -> list[str]:
        """The twins whose mark is to be read now.

        If one is due, so is each that is due soon: one listing has the marks of all.
        """
        if self.next_at > now:
            return []
        return [
            path
            for path, twin in self._twins.items()
            if twin.due_at <= now
            or (twin.due_at <= now + READ_TOGETHER_S and twin.read_at + READ_AGAIN_S <= now)
        ]

    @property
    def next_at(self) -> float:
        """When a mark is to be read next; infinite: no entity has a twin."""
        return min((twin.due_at for twin in self._twins.values()), default=math.inf)

    def failed(self, path: str, now: float) -> None:
        """A divert to the twin failed: it may be gone, so its mark is read soon."""
        twin = self._twins.get(path)
        if twin is not None:
            twin.due_at = min(twin.due_at, max(now, twin.read_at + READ_AGAIN_S))

    def was_read(
        self, path: str, is_marked: bool | None, now: float, jitter: float
    ) -> TwinNews | None:
        """A mark was read, None: the right to is missing; return what that changes.

        `jitter` is from 0 to 1.
        """
        twin = self._twins.get(path)
        if twin is None or self._is_closed:
            return None
        before = twin.is_used, twin.is_verified, twin.reason
        twin.read_at, twin.due_at = now, now + jittered(READ_EVERY_S, jitter)
        twin.is_verified = is_marked is True
        twin.is_used = twin.is_verified or (is_marked is None and is_named(self._listed, path))
        twin.reason = "" if twin.is_used else self._why_not(path, is_marked)
        if twin.is_used:
            self._rotation.add_twin(path)
        else:
            self._rotation.drop_twin(path)
        if before == (twin.is_used, twin.is_verified, twin.reason):
            return None
        return TwinNews(path, twin.is_used, twin.is_verified, twin.reason)

    def not_read(self, path: str, reason: str, now: float, jitter: float) -> None:
        """The secondary did not answer: what is known of the twin stays."""
        twin = self._twins.get(path)
        if twin is not None:
            twin.read_at, twin.due_at = now, now + jittered(READ_AGAIN_S, jitter)
            if not twin.is_used:
                twin.reason = f"its mark could not be read: {reason}"

    def _why_not(self, path: str, is_marked: bool | None) -> str:
        if is_marked is None:
            return (
                "its mark cannot be read without the Manage right; grant it, or list"
                f" {path!r} itself in twins"
            )
        return (
            f"the secondary has no {path!r} with the mark {twin_mark(self._label)};"
            " `twinbus twins create` makes one"
        )

    def status(self, path: str, now: float) -> TwinStatus | None:
        """The twin of an entity; None: it is to have none. From any thread."""
        twin = self._twins.get(path)
        if twin is None:
            return None
        named = is_named(self._listed, path)
        pulled = self._rotation.pulled(now).get(path)
        if pulled is not None:
            return TwinStatus(TWIN_PULLED, pulled[0], pulled[1], twin.is_verified, named)
        if twin.is_used:
            return TwinStatus(TWIN_USED, verified=twin.is_verified, named=named)
        is_read = twin.read_at > -math.inf
        return TwinStatus(TWIN_NOT_USED if is_read else TWIN_UNKNOWN, twin.reason, named=named)


class TwinFirst(KeptChoice):
    """Where one sender diverts to: the twin of its entity first, then its backlog queue."""

    __slots__ = ("_backlog", "_left_until", "twin")

    twin: str

    def __init__(self, twin: str, rotation: Rotation, backlog: KeptChoice) -> None:
        super().__init__(rotation, lambda queues: queues[0])
        self.twin = twin
        self._backlog = backlog
        self._left_until = -math.inf
        """Callers' timeouts ended attempts on the twin: backlog queues come first until then."""

    @property
    def protected(self) -> bool:
        return self._backlog.protected or self._rotation.has(self.twin)

    def choose(self, now: float, tried: Collection[str] = ()) -> str | None:
        """The twin while it can be used, else a backlog queue; None: none is left."""
        is_left = self.twin in tried or now < self._left_until
        if not is_left and self._rotation.is_in(self.twin, now):
            return self.twin
        queue = self._backlog.choose(now, tried)
        is_needed = queue is None and self.twin not in tried
        return self.twin if is_needed and self._rotation.is_in(self.twin, now) else queue

    def cut_short(self, queue: str, now: float) -> None:
        """As for a backlog queue; the sender returns to its twin after some time."""
        if queue != self.twin:
            self._backlog.cut_short(queue, now)
            return
        self._cuts += 1
        if self._cuts >= CUTS_MAX:
            self._cuts, self._left_until = 0, now + FIRST_PULL_S

    def answered(self, queue: str) -> None:
        if queue == self.twin:
            self._cuts = 0
        else:
            self._backlog.answered(queue)

    def resting(self, now: float, tried: Collection[str] = ()) -> str | None:
        queue = self._backlog.resting(now, tried)
        if queue is not None or self.twin in tried or not self._rotation.has(self.twin):
            return queue
        return None if self._rotation.is_in(self.twin, now) else self.twin

    def may_return(self, now: float, tried: Collection[str] = ()) -> bool:
        is_twin = self.twin not in tried and self._rotation.has(self.twin)
        return is_twin or self._backlog.may_return(now, tried)
