"""Strict session order on the sending side: which sessions are bound to the backlog (SPEC 3).

    free --a message is diverted, or may have been--> bound --a look shows none of it--> free

While a session is bound its messages are diverted to its own backlog queue, although the entity may
be healthy: what went straight to the primary would overtake what waits in the backlog. It is free
again when its queue was looked through from the first message to the last, that look began after
its last divert ended, and none of its messages was there.

Pure: time is an argument. Only bound sessions are remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from twinbus.pairing.core.backlog import session_queue

__all__ = ["Diversion", "SessionKey", "SessionOrder", "SessionPeek"]

DOUBT_S: Final = 5.0
"""A divert that was cut off may still arrive. Its session is looked for no sooner than this after
it, so that the look does not come first."""

SHORT: Final = 250
"""Messages in a backlog queue that are drained in a moment: worth a short wait."""

WAIT_AGAIN_S: Final = 10.0
"""Between two such waits of one session."""


class SessionKey(NamedTuple):
    """A session of one entity; entity paths are the same in any letter case."""

    path: str
    session: str

    @classmethod
    def of(cls, path: str, session: str) -> SessionKey:
        return cls(path.strip("/").lower(), session)


class Diversion(Enum):
    """How a divert ended."""

    STORED = "the backlog queue has the message"
    DOUBTFUL = "it may have it: the answer was lost"
    REFUSED = "it does not have it"


class _Bound:
    """One bound session."""

    __slots__ = ("diverting", "looked_from", "places", "queue", "stored", "waited_at")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        """Where it is diverted to. An earlier process, with other options, may have left messages
        of it elsewhere: then there, for behind them is its place."""
        self.places = {queue}
        """Queues in which something of it is, or may be."""
        self.diverting = 0
        """Diverts in flight."""
        self.stored = False
        """Something of it is in the backlog, or may be."""
        self.looked_from = float("-inf")
        """Only a look that begins at this time or later can free it."""
        self.waited_at = float("-inf")


@dataclass(slots=True)
class SessionPeek:
    """One look through a backlog queue, from its first message to its last."""

    queue: str
    began: float
    seen: set[SessionKey] = field(default_factory=set)
    messages: int = 0


class _Reading(Enum):
    """What is known of a backlog queue as a whole."""

    UNREAD = "nothing: it could not be looked at yet"
    BEING_READ = "nothing: the first look is under way"
    READ = "all sessions that were there are bound"


class SessionOrder:
    """The bound sessions of one pair."""

    def __init__(self, paths: Sequence[str]) -> None:
        """`paths` are all backlog queues of the pair's options, also those that cannot be had."""
        self._paths = paths
        self._bound: dict[SessionKey, _Bound] = {}
        self._readings = dict.fromkeys(paths, _Reading.UNREAD)
        self._depths: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"SessionOrder({len(self._bound)} bound)"

    def __len__(self) -> int:
        return len(self._bound)

    def queue_of(self, key: SessionKey) -> str:
        """The session's backlog queue."""
        bound = self._bound.get(key)
        return session_queue(self._paths, key.path, key.session) if bound is None else bound.queue

    def is_bound(self, key: SessionKey) -> bool:
        """Whether the session's messages must be diverted, whatever its entity's state."""
        if key in self._bound:
            return True
        # As long as the first look is under way nobody knows what an earlier process left there.
        return self._readings[self.queue_of(key)] is _Reading.BEING_READ

    # Diverts

    def begin(self, key: SessionKey) -> None:
        """A divert of the session begins: from now on it is bound."""
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = _Bound(self.queue_of(key))
        bound.diverting += 1
        bound.places.add(bound.queue)

    def end(self, key: SessionKey, how: Diversion, now: float) -> None:
        """A divert of the session ended."""
        bound = self._bound[key]
        assert bound.diverting > 0, key
        bound.diverting -= 1
        if how is not Diversion.REFUSED:
            bound.stored = True
            doubt_s = DOUBT_S if how is Diversion.DOUBTFUL else 0.0
            bound.looked_from = max(bound.looked_from, now + doubt_s)
        elif not bound.stored and not bound.diverting:
            # Nothing of it is in the backlog: with the secondary down, too, it must not be held.
            del self._bound[key]

    def worth_waiting(self, key: SessionKey, now: float) -> bool:
        """Whether a send had better wait a moment for the session to become free.

        A session that sends without a pause would never be: there is always one message of it on
        its way through the backlog. Asked now and then, where little is left to drain.
        """
        bound = self._bound.get(key)
        if bound is None or bound.diverting or now - bound.waited_at < WAIT_AGAIN_S:
            return False
        if now < bound.looked_from or self._depths.get(bound.queue, SHORT + 1) > SHORT:
            return False
        bound.waited_at = now
        return True

    # Looks

    def first_look(self, queue: str, now: float) -> SessionPeek:
        """Begin the look that finds what an earlier process left behind."""
        self._readings[queue] = _Reading.BEING_READ
        return SessionPeek(queue, now)

    def look(self, queue: str, now: float) -> SessionPeek:
        """Begin a look."""
        return SessionPeek(queue, now)

    def to_look_at(self, is_back: Callable[[str], bool], now: float) -> list[str]:
        """The queues worth a look now: of bound sessions whose entity takes messages again."""
        queues: dict[str, None] = {}
        for key, bound in self._bound.items():
            ready = bound.stored and not bound.diverting and now >= bound.looked_from
            if ready and not bound.places <= queues.keys() and is_back(key.path):
                queues.update(dict.fromkeys(sorted(bound.places)))
        return list(queues)

    def is_unread(self, queue: str) -> bool:
        """Whether the queue was never looked through."""
        return self._readings[queue] is _Reading.UNREAD

    def saw(self, look: SessionPeek, messages: Iterable[tuple[str, str | None]]) -> None:
        """A look found messages: path and session of each."""
        for path, session in messages:
            look.messages += 1
            if session is None:
                continue
            key = SessionKey.of(path, session)
            look.seen.add(key)
            # One that is not known was left by an earlier process.
            bound = self._bound.setdefault(key, _Bound(look.queue))
            bound.stored = True
            bound.places.add(look.queue)

    def finish(self, look: SessionPeek) -> list[SessionKey]:
        """A look came to the queue's end; the sessions that are free now."""
        self._readings[look.queue] = _Reading.READ
        self._depths[look.queue] = look.messages
        free: list[SessionKey] = []
        for key, bound in self._bound.items():
            is_shown = not bound.diverting and look.began >= bound.looked_from
            if is_shown and key not in look.seen:
                bound.places.discard(look.queue)
                if not bound.places:
                    free.append(key)
        for key in free:
            del self._bound[key]
        return free

    def give_up(self, look: SessionPeek) -> None:
        """A look broke off. If it was the first, sends of unknown sessions use the primary."""
        if self._readings[look.queue] is _Reading.BEING_READ:
            self._readings[look.queue] = _Reading.UNREAD
