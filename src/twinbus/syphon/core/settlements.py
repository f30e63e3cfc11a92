"""What was decided about received messages, told to the backlog queue until it confirms it.

A decision is made once for each message. While the queue cannot be reached it is kept, and told
when it can; a message that was only to be given back needs no telling, its lock ends by itself.
"""

from __future__ import annotations

from twinbus.syphon.core.actions import Action, Complete, DeadLetter, Defer, Release
from twinbus.syphon.core.backlog_message import BacklogMessage
from twinbus.syphon.core.intake import Intake

__all__ = ["Settlements"]


class Settlements:
    """The decisions of one pump."""

    __slots__ = ("_intake", "_opened_at", "is_open")

    def __init__(self, intake: Intake) -> None:
        self.is_open = False
        """The backlog queue can be told."""
        self._intake = intake
        self._opened_at = 0.0

    def complete(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """These are in the primary: they leave the backlog."""
        for message in messages:
            assert message.accepted, message
            message.outcome = Complete
            message.settling_at = now
            if message.received_at < self._opened_at:
                # It came over an earlier link, and its lock may have ended with that: then it is
                # delivered again, before the queue says that it cannot be completed.
                self._intake.remember(message)
        return [Complete(messages)] if self.is_open and messages else []

    def dead_letter(
        self, message: BacklogMessage, reason: str, description: str, now: float
    ) -> list[Action]:
        """This one can never be delivered."""
        return self._decide(message, DeadLetter(message, reason, description), now)

    def defer(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """These wait in the backlog queue without being in the way of others."""
        return [a for message in messages for a in self._decide(message, Defer(message), now)]

    def release(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """These go back as if they had not been received."""
        return [a for message in messages for a in self._decide(message, Release(message), now)]

    def close(self) -> None:
        """The backlog queue cannot be told any more."""
        self.is_open = False
        for message in [p for p in self._intake if isinstance(p.outcome, Release | Defer)]:
            self._intake.forget(message)

    def open(self, now: float) -> list[Action]:
        """The backlog queue can be told again: all that it did not confirm."""
        self.is_open = True
        self._opened_at = now
        actions = self.complete([p for p in self._intake if p.outcome is Complete], now)
        for message in self._intake:
            if isinstance(message.outcome, DeadLetter):
                message.settling_at = now
                actions.append(message.outcome)
        return actions

    def _decide(
        self, message: BacklogMessage, outcome: DeadLetter | Defer | Release, now: float
    ) -> list[Action]:
        assert message.outcome is None, message
        message.outcome = outcome
        message.settling_at = now
        if self.is_open:
            return [outcome]
        if not isinstance(outcome, DeadLetter):
            self._intake.forget(message)
        return []
