"""What receivers may do with the sessions of a queue."""

from __future__ import annotations

from collections.abc import Callable

from twinbus.broker.engine.message_states import MessageStates
from twinbus.broker.engine.sessions import Sessions
from twinbus.broker.refusals import EntityNotFound, NotAllowed, SessionLockLost


class SessionAccess:
    """The session operations of one queue; `NotAllowed` where it has no sessions."""

    __slots__ = ("_catch_up", "_require_receiving", "_states")

    def __init__(
        self,
        states: MessageStates,
        catch_up: Callable[[int], None],
        require_receiving: Callable[[int], None],
    ) -> None:
        self._states = states
        self._catch_up = catch_up
        self._require_receiving = require_receiving

    def _required(self) -> Sessions:
        sessions = self._states.sessions
        if sessions is None:
            raise NotAllowed(f"{self._states.path!r} has no sessions")
        return sessions

    def accept(self, session_id: str | None, holder: object, now_ms: int) -> tuple[str, int] | None:
        """Lock a session, the named one or the next with messages: its id, until when; or None."""
        self._require_receiving(now_ms)
        until_ms = now_ms + self._states.description.lock_duration_ms
        session = self._required().accept(session_id, holder, until_ms)
        if session is None:
            return None
        self._states.wake_by(until_ms)
        return session.session_id, until_ms

    def renew(self, session_id: str, holder: object | None, now_ms: int) -> int:
        """Hold a session for another lock duration from now; returns until when."""
        self._catch_up(now_ms)
        sessions = self._required()
        session = sessions.held(session_id, holder, now_ms)
        sessions.renew(session, now_ms + self._states.description.lock_duration_ms)
        self._states.wake_by(session.locked_until_ms)
        return session.locked_until_ms

    def is_held_by(self, session_id: str, holder: object, now_ms: int) -> bool:
        try:
            return self._required().held(session_id, holder, now_ms).holder is holder
        except SessionLockLost:
            return False

    def release_holder(self, holder: object, now_ms: int) -> None:
        """Free the sessions of a receiver that left; its other locks run on until they expire."""
        sessions = self._states.sessions
        if sessions is not None:
            try:
                self._catch_up(now_ms)
            except EntityNotFound:
                return
            for session in sessions.held_by(holder):
                self._states.free_session(session, now_ms, counted=False)

    def state(self, session_id: str) -> bytes | None:
        state = self._required().states.get(session_id)
        return None if state is None else state.content

    def set_state(
        self, session_id: str, state: bytes | None, now_ms: int, *, holder: object | None = None
    ) -> None:
        """Set the state of a held session; None deletes it."""
        self._catch_up(now_ms)
        sessions = self._required()
        sessions.held(session_id, holder, now_ms)
        sessions.set_state(session_id, state, now_ms, self._states.require_room)

    def ids(self, updated_since_ms: int | None = None) -> list[str]:
        """Ids of the sessions that have ready messages or a state, or whose state is that new."""
        return self._required().ids(updated_since_ms)
