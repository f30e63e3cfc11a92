"""Who may do what with a queue now: its status, the terms of a lock, and its sessions."""

from __future__ import annotations

from twinbus.broker.engine.message_states import NEVER_MS, MessageStates
from twinbus.broker.engine.sessions import MessageSession, Sessions
from twinbus.broker.refusals import EntityDisabled, EntityNotFound, NotAllowed, SessionLockLost

REFUSE_SENDS = ("Disabled", "SendDisabled")
REFUSE_RECEIVES = ("Disabled", "ReceiveDisabled")


class Access(MessageStates):
    """The doors of a queue, and the sessions behind which its messages may be."""

    is_deleted = False
    accessed_at_ms = 0

    @property
    def requires_session(self) -> bool:
        """Whether messages here are received session by session."""
        return self._sessions is not None

    def catch_up(self, now_ms: int) -> None:
        """Let time do what it has to do by now, before a client's request is looked at."""
        if self.is_deleted:
            raise EntityNotFound(f"{self.path!r} was deleted")
        self.accessed_at_ms = now_ms
        if now_ms >= self._wake_ms:
            self.run_timers(now_ms)

    def require_sending(self) -> None:
        """Raise unless the queue takes messages."""
        if self.is_deleted:
            raise EntityNotFound(f"{self.path!r} was deleted")
        self._require_status(REFUSE_SENDS)

    def require_receiving(self, now_ms: int) -> None:
        """Catch up, and raise unless the queue gives messages out."""
        self.catch_up(now_ms)
        if self.description.status != "Active":
            self._require_status(REFUSE_RECEIVES)

    def _require_status(self, refused: tuple[str, ...]) -> None:
        status = self.description.status
        if status in refused:
            raise EntityDisabled(f"the status of {self.path!r} is {status}; set it to Active first")

    def lock_terms(
        self, session_id: str | None, holder: object, now_ms: int
    ) -> tuple[MessageSession | None, int]:
        """The session to receive from, where there are any, and until when messages are locked."""
        if self._sessions is None:
            if session_id is not None:
                raise NotAllowed(f"{self.path!r} has no sessions: receive without a session id")
            return None, now_ms + self.description.lock_duration_ms
        if session_id is None:
            raise NotAllowed(f"{self.path!r} requires sessions: accept one to receive from it")
        session = self._sessions.held(session_id, holder, now_ms)
        return session, session.locked_until_ms

    def with_sessions(self) -> Sessions:
        """The sessions, or `NotAllowed` where there are none."""
        if self._sessions is None:
            raise NotAllowed(f"{self.path!r} has no sessions")
        return self._sessions

    def close(self) -> None:
        """Refuse everything from now on: the entity was deleted, but links may still know it."""
        self.is_deleted = True
        self._locks.clear()
        self._wake_ms = NEVER_MS

    # Sessions

    def accept_session(
        self, session_id: str | None, holder: object, now_ms: int
    ) -> tuple[str, int] | None:
        """Lock a session, the named one or the next with messages: its id, until when; or None."""
        self.require_receiving(now_ms)
        until_ms = now_ms + self.description.lock_duration_ms
        session = self.with_sessions().accept(session_id, holder, until_ms)
        if session is None:
            return None
        self._wake_by(until_ms)
        return session.session_id, until_ms

    def renew_session(self, session_id: str, holder: object | None, now_ms: int) -> int:
        """Hold a session for another lock duration from now; returns until when."""
        self.catch_up(now_ms)
        sessions = self.with_sessions()
        session = sessions.held(session_id, holder, now_ms)
        sessions.renew(session, now_ms + self.description.lock_duration_ms)
        self._wake_by(session.locked_until_ms)
        return session.locked_until_ms

    def holds_session(self, session_id: str, holder: object, now_ms: int) -> bool:
        """Whether `holder` holds the session now."""
        try:
            return self.with_sessions().held(session_id, holder, now_ms).holder is holder
        except SessionLockLost:
            return False

    def release_holder(self, holder: object, now_ms: int) -> None:
        """Free the sessions of a receiver that left; its other locks run on until they expire."""
        if self._sessions is not None and not self.is_deleted:
            self.catch_up(now_ms)
            for session in self._sessions.held_by(holder):
                self.free_session(session, now_ms, counted=False)

    def session_state(self, session_id: str) -> bytes | None:
        """What was last set as the session's state."""
        state = self.with_sessions().states.get(session_id)
        return None if state is None else state.content

    def set_session_state(
        self, session_id: str, state: bytes | None, now_ms: int, *, holder: object | None = None
    ) -> None:
        """Keep a state for a held session; None forgets it."""
        self.catch_up(now_ms)
        sessions = self.with_sessions()
        sessions.held(session_id, holder, now_ms)
        sessions.set_state(session_id, state, now_ms)

    def session_ids(self, updated_since_ms: int | None = None) -> list[str]:
        """Ids of the sessions that have ready messages or a state, or whose state is that new."""
        sessions = self.with_sessions()
        if updated_since_ms is None:
            return sessions.names()
        return sessions.updated_since(updated_since_ms)
