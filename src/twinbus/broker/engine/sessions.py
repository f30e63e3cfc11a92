"""The sessions of one queue: their holders, those that are available, and their states.

    EMPTY --message--> AVAILABLE --accept--> HELD --release or expiry--> AVAILABLE or EMPTY
      '--------------- accept by name --------^

A held session belongs to one receiver until it is released or its lock expires; its locked messages
then return together. A session that is neither held nor has ready messages is not kept in memory;
only its state is, if it has one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice, takewhile

from twinbus.broker.engine.limits import SESSION_BYTES, state_bytes
from twinbus.broker.engine.message_index import ReadyMessages
from twinbus.broker.engine.settlement import Deadlines
from twinbus.broker.journal import Journal, SessionState, StoredMessage
from twinbus.broker.refusals import ArgumentOutOfRange, SessionCannotBeLocked, SessionLockLost

RELISTED_MAX = 64
"""Changes after which a list of all sessions is sorted anew; one by one is faster for fewer."""

STATE_BYTES_MAX = 256 * 1024
"""A session's state is bounded as Azure bounds it: by the size of a message on Standard."""


class MessageSession:
    """One session that is held or has ready messages."""

    __slots__ = ("holder", "locked_until_ms", "ready_messages", "session_id", "tokens")

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.ready_messages = ReadyMessages()
        self.holder: object | None = None
        self.locked_until_ms = 0
        """0 while the session is not held."""
        self.tokens: dict[bytes, None] = {}
        """Lock tokens of the messages that the holder has, in order of delivery."""

    def __repr__(self) -> str:
        held = f"held until {self.locked_until_ms}" if self.locked_until_ms else "free"
        return f"<session {self.session_id!r}, {held}, {len(self.ready_messages)} ready>"


class Sessions:
    def __init__(self, path: str, entity_id: int, journal: Journal) -> None:
        self._path = path
        self._entity_id = entity_id
        self._journal = journal
        self._sessions: dict[str, MessageSession] = {}
        self._available: OrderedDict[str, MessageSession] = OrderedDict()
        """Free sessions with ready messages; the one that has waited longest comes first."""
        self._held_by: dict[int, dict[str, MessageSession]] = {}
        """By the identity of the holder, which its sessions keep alive."""
        self.states: dict[str, SessionState] = {}
        """State of each session that has one."""
        self._states_bytes = 0
        self._fed: dict[str, None] = {}
        """Sessions that got messages, for who serves the receivers; kept ones only."""
        self._listed: list[str] | None = None
        """What `ids` returns, sorted; made when it is asked for."""
        self._relisted: set[str] = set()
        """Sessions that may have come to that or gone from it since."""
        self.deadlines: Deadlines[str] = Deadlines(self._expiry_of)

    def _expiry_of(self, session_id: str) -> int:
        session = self._sessions.get(session_id)
        return 0 if session is None else session.locked_until_ms

    @property
    def memory_bytes(self) -> int:
        """Memory of all sessions and states without the messages, by estimate (`memory`)."""
        return self._states_bytes + SESSION_BYTES * len(self._sessions)

    # Messages

    def append(self, message: StoredMessage) -> None:
        self._session_of(message).ready_messages.append(message)

    def give_back(self, message: StoredMessage) -> None:
        self._session_of(message).ready_messages.give_back(message)

    def drop(self, message: StoredMessage) -> None:
        session = self._sessions[message.session_id or ""]
        session.ready_messages.drop(message)
        self.note_change(session.session_id)
        self.tidy(session)

    def _session_of(self, message: StoredMessage) -> MessageSession:
        assert message.session_id is not None, f"{message!r} without a session in {self._path}"
        session = self._sessions.get(message.session_id)
        if session is None:
            session = self._sessions[message.session_id] = MessageSession(message.session_id)
        if not session.locked_until_ms:
            self._available.setdefault(message.session_id, session)
        self.feed(message.session_id)
        self.note_change(message.session_id)
        return session

    def feed(self, session_id: str) -> None:
        """Note that a session has messages to deliver."""
        self._fed[session_id] = None

    def take_fed(self) -> list[str]:
        """The sessions that got messages since the last call."""
        fed, self._fed = self._fed, {}
        return list(fed)

    def tidy(self, session: MessageSession) -> None:
        """Forget a session that is neither held nor has ready messages."""
        if not session.locked_until_ms and not len(session.ready_messages):
            self._available.pop(session.session_id, None)
            self._sessions.pop(session.session_id, None)
            self._fed.pop(session.session_id, None)

    # Locks

    def accept(
        self, session_id: str | None, holder: object, until_ms: int
    ) -> MessageSession | None:
        """Lock the named session, or the next with messages (None: none is free), for `holder`."""
        if session_id is None:
            if not self._available:
                return None
            session_id = next(iter(self._available))
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = MessageSession(session_id)
        if session.locked_until_ms:
            raise SessionCannotBeLocked(
                f"session {session_id!r} of {self._path!r} is held by another receiver; "
                "wait until it is released, or accept another session"
            )
        self._available.pop(session_id, None)
        session.holder = holder
        self._held_by.setdefault(id(holder), {})[session_id] = session
        self.renew(session, until_ms)
        return session

    def held(self, session_id: str, holder: object | None, now_ms: int) -> MessageSession:
        """The session, if `holder` (None: anyone) holds it; raises `SessionLockLost` otherwise."""
        session = self._sessions.get(session_id)
        if (
            session is None
            or session.locked_until_ms <= now_ms
            or (holder is not None and session.holder is not holder)
        ):
            raise SessionLockLost(
                f"the lock of session {session_id!r} of {self._path!r} is not held (any more) by "
                "this receiver; accept the session again"
            )
        return session

    def renew(self, session: MessageSession, until_ms: int) -> None:
        session.locked_until_ms = until_ms
        self.deadlines.add(until_ms, session.session_id)

    def free(self, session: MessageSession) -> None:
        """End a session's lock; its messages must be unlocked and ready again."""
        assert not session.tokens, f"{session!r} still has locked messages"
        mine = self._held_by[id(session.holder)]
        del mine[session.session_id]
        if not mine:
            del self._held_by[id(session.holder)]
        session.holder = None
        session.locked_until_ms = 0
        if len(session.ready_messages):
            self._available[session.session_id] = session
        self.tidy(session)

    def held_by(self, holder: object) -> list[MessageSession]:
        return list(self._held_by.get(id(holder), {}).values())

    def expired(self, now_ms: int) -> MessageSession | None:
        """A held session whose lock has expired, or None."""
        session_id = self.deadlines.pop(now_ms)
        return None if session_id is None else self._sessions[session_id]

    def get(self, session_id: str | None) -> MessageSession | None:
        """The session, if it is held or has ready messages."""
        return self._sessions.get(session_id or "")

    # States

    def set_state(
        self,
        session_id: str,
        content: bytes | None,
        now_ms: int,
        require_room: Callable[[int], None],
    ) -> None:
        """Set a session's state; None deletes it. `require_room` raises if it takes no more."""
        if content is not None and len(content) > STATE_BYTES_MAX:
            raise ArgumentOutOfRange(
                f"the state of session {session_id!r} has {len(content)} bytes, at most "
                f"{STATE_BYTES_MAX} are kept; store the rest elsewhere"
            )
        old = self.states.get(session_id)
        if content is None and old is None:
            return
        new = None if content is None else SessionState(content, now_ms)
        added_bytes = state_bytes(session_id, new) - state_bytes(session_id, old)
        if added_bytes > 0:
            require_room(added_bytes)
        self._states_bytes += added_bytes
        self.states.pop(session_id, None)
        if new is not None:
            self.states[session_id] = new  # The last one, since it is the latest.
        self.note_change(session_id)
        self._journal.put_session_state(self._entity_id, session_id, new)

    def restore_states(self, states: dict[str, SessionState]) -> None:
        self.states = dict(sorted(states.items(), key=lambda item: item[1].updated_at_ms))
        self._states_bytes = sum(state_bytes(name, states[name]) for name in states)

    def ids(self, page: slice) -> list[str]:
        """A page of the sorted ids of the sessions that have ready messages or a state."""
        names = self._listed
        if names is None or len(self._relisted) > RELISTED_MAX:
            ready = (name for name, each in self._sessions.items() if len(each.ready_messages))
            names = self._listed = sorted(self.states.keys() | set(ready))
        else:
            for name in self._relisted:
                self._list_again(names, name)
        self._relisted.clear()
        return names[page]

    def _list_again(self, names: list[str], name: str) -> None:
        session = self._sessions.get(name)
        is_listed = name in self.states or (session is not None and len(session.ready_messages) > 0)
        place = bisect_left(names, name)
        was_listed = place < len(names) and names[place] == name
        if is_listed and not was_listed:
            names.insert(place, name)
        elif was_listed and not is_listed:
            del names[place]

    def note_change(self, session_id: str) -> None:
        """Note that a session has fewer messages, or more, or its state changed."""
        if self._listed is not None:
            self._relisted.add(session_id)
            if len(self._relisted) > RELISTED_MAX + len(self._listed):
                self._listed = None
                self._relisted.clear()

    def updated_since(self, since_ms: int, page: slice) -> list[str]:
        """A page of the ids of the sessions whose state is that new, the latest first."""
        states = self.states
        found = takewhile(lambda name: states[name].updated_at_ms >= since_ms, reversed(states))
        return list(islice(found, page.start, page.stop))
