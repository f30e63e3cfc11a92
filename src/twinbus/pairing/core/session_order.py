"""Strict session order on the sending side: which sessions are bound to the backlog.

    free --a message is diverted, or may have been--> bound --a scan finds none of it--> free

While a session is bound its messages are diverted to its own backlog queue, although the entity may
be healthy: a message sent straight to the primary would overtake those that wait in the backlog. A
session is free again when a scan of its queue, from the first message to the last, began after its
last divert ended and found none of its messages.

Pure: time is an argument. Only bound sessions are remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from twinbus.pairing.core.backlog import session_queue

DOUBT_S: Final = 5.0
"""A divert that was cut off may still arrive. Only a scan that begins this long after it can free
its session."""

SHORT: Final = 250
"""Messages in a backlog queue that are drained in a moment: worth a short wait."""

WAIT_AGAIN_S: Final = 10.0
"""Time between two such waits of one session."""


class SessionKey(NamedTuple):
    """A session of one entity; entity paths are the same in any letter case."""

    path: str
    session: str

    @classmethod
    def of(cls, path: str, session: str) -> SessionKey:
        return cls(path.strip("/").lower(), session)


class Diversion(Enum):
    STORED = "the backlog queue has the message"
    DOUBTFUL = "it may have it: the answer was lost"
    REFUSED = "it does not have it"


class _BoundSession:
    __slots__ = ("diverting", "queue", "queues", "scan_from", "stored", "waited_at")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        """Where it is diverted to: its own queue, or the one in which an earlier process, with
        other options, left messages of it."""
        self.queues = {queue}
        """Queues that hold messages of it, or may hold some."""
        self.diverting = 0
        """Diverts in flight."""
        self.stored = False
        """The backlog holds messages of it, or may hold some."""
        self.scan_from = float("-inf")
        """Only a scan that begins at this time or later can free it."""
        self.waited_at = float("-inf")


@dataclass(slots=True)
class QueueScan:
    """One scan of a backlog queue, from its first message to its last."""

    queue: str
    began: float
    seen: set[SessionKey] = field(default_factory=set)
    messages: int = 0


class _ScanState(Enum):
    """What is known of a backlog queue as a whole."""

    UNSCANNED = "nothing: no scan has reached its end yet"
    FIRST_SCAN = "nothing: the first scan is in progress"
    SCANNED = "all sessions that it held are bound"


class SessionOrder:
    def __init__(self, paths: Sequence[str]) -> None:
        """`paths` are all backlog queues of the pair's options, also those that are missing."""
        self._paths = paths
        self._bound: dict[SessionKey, _BoundSession] = {}
        self._scan_states = dict.fromkeys(paths, _ScanState.UNSCANNED)
        self._depths: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"SessionOrder({len(self._bound)} bound)"

    def __len__(self) -> int:
        return len(self._bound)

    def queue_of(self, key: SessionKey) -> str:
        bound = self._bound.get(key)
        return session_queue(self._paths, key.path, key.session) if bound is None else bound.queue

    def is_bound(self, key: SessionKey) -> bool:
        """Whether the session's messages must be diverted, whatever its entity's state."""
        if key in self._bound:
            return True
        # Until the first scan ends, the queue may hold messages of an earlier process.
        return self._scan_states[self.queue_of(key)] is _ScanState.FIRST_SCAN

    # Diverts

    def begin_divert(self, key: SessionKey) -> None:
        """A divert of the session begins: from now on it is bound."""
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = _BoundSession(self.queue_of(key))
        bound.diverting += 1
        bound.queues.add(bound.queue)

    def end_divert(self, key: SessionKey, ended: Diversion, now: float) -> None:
        bound = self._bound[key]
        assert bound.diverting > 0, key
        bound.diverting -= 1
        if ended is not Diversion.REFUSED:
            bound.stored = True
            doubt_s = DOUBT_S if ended is Diversion.DOUBTFUL else 0.0
            bound.scan_from = max(bound.scan_from, now + doubt_s)
        elif not bound.stored and not bound.diverting:
            # The backlog holds none of it; with the secondary down as well it must not stay bound.
            del self._bound[key]

    def worth_waiting(self, key: SessionKey, now: float) -> bool:
        """Whether a send should wait a moment for the session to become free.

        A session that sends without a pause would never become free: one of its messages is always
        in the backlog. True now and then, where little is left to drain.
        """
        bound = self._bound.get(key)
        if bound is None or bound.diverting or now - bound.waited_at < WAIT_AGAIN_S:
            return False
        if now < bound.scan_from or self._depths.get(bound.queue, SHORT + 1) > SHORT:
            return False
        bound.waited_at = now
        return True

    # Scans

    def begin_first_scan(self, queue: str, now: float) -> QueueScan:
        """Begin the scan that finds what an earlier process left behind."""
        self._scan_states[queue] = _ScanState.FIRST_SCAN
        return QueueScan(queue, now)

    def queues_to_scan(self, is_back: Callable[[str], bool], now: float) -> list[str]:
        """The queues worth a scan now: of bound sessions whose entity takes messages again."""
        queues: dict[str, None] = {}
        for key, bound in self._bound.items():
            ready = bound.stored and not bound.diverting and now >= bound.scan_from
            if ready and not bound.queues <= queues.keys() and is_back(key.path):
                queues.update(dict.fromkeys(sorted(bound.queues)))
        return list(queues)

    def is_unscanned(self, queue: str) -> bool:
        """Whether no scan of the queue has begun, or the first one broke off."""
        return self._scan_states[queue] is _ScanState.UNSCANNED

    def add_page(self, scan: QueueScan, messages: Iterable[tuple[str, str | None]]) -> None:
        for path, session in messages:
            scan.messages += 1
            if session is None:
                continue
            key = SessionKey.of(path, session)
            scan.seen.add(key)
            # An unknown session was left by an earlier process.
            bound = self._bound.setdefault(key, _BoundSession(scan.queue))
            bound.stored = True
            bound.queues.add(scan.queue)

    def finish_scan(self, scan: QueueScan) -> list[SessionKey]:
        """A scan reached the end of its queue; return the sessions that are free now."""
        self._scan_states[scan.queue] = _ScanState.SCANNED
        self._depths[scan.queue] = scan.messages
        free: list[SessionKey] = []
        for key, bound in self._bound.items():
            is_covered = not bound.diverting and scan.began >= bound.scan_from
            if is_covered and key not in scan.seen:
                bound.queues.discard(scan.queue)
                if not bound.queues:
                    free.append(key)
        for key in free:
            del self._bound[key]
        return free

    def abandon_scan(self, scan: QueueScan) -> None:
        """A scan broke off. If it was the first, sends of unknown sessions use the primary."""
        if self._scan_states[scan.queue] is _ScanState.FIRST_SCAN:
            self._scan_states[scan.queue] = _ScanState.UNSCANNED
