"""How received messages are settled; kept until the backlog queue confirms it.

Each message is decided once. While the queue cannot be reached, decisions are kept and sent later;
a release needs no request then, because the lock ends by itself.
"""

from __future__ import annotations

from twinbus.syphon.core.actions import Action, Complete, DeadLetter, Defer, Release
from twinbus.syphon.core.backlog_message import BacklogMessage
from twinbus.syphon.core.intake import Intake


class Settlements:
    """The settlements of one pump."""

    def __init__(self, intake: Intake) -> None:
        self.is_open = False
        """The backlog queue can be reached."""
        self.remembered = intake.remembered
        """Usually empty: a cheap question before `complete_known`."""
        self._intake = intake
        self._opened_at = 0.0

    def complete_known(self, message: BacklogMessage, now: float) -> list[Action] | None:
        """Complete a message that the primary has by an earlier delivery; None: it has it not."""
        if not self._intake.recall(message):
            return None
        message.accepted = True
        return self.complete([message], now)

    def complete(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """Complete messages that the primary has."""
        for message in messages:
            assert message.accepted, message
            message.outcome = Complete
            message.settling_at = now
            if message.received_at < self._opened_at:
                # It came over an earlier link, and its lock may have ended with that link. Then it
                # is delivered again before the queue refuses the completion.
                self._intake.remember(message)
        return [Complete(messages)] if self.is_open and messages else []

    def dead_letter(
        self, message: BacklogMessage, reason: str, description: str, now: float
    ) -> list[Action]:
        """Dead-letter a message that can never be delivered."""
        return self._decide(message, DeadLetter(message, reason, description), now)

    def defer(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """Defer messages, so that the queue delivers those after them."""
        return [a for message in messages for a in self._decide(message, Defer(message), now)]

    def release(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """Release messages, so that the queue delivers them again."""
        return [a for message in messages for a in self._decide(message, Release(message), now)]

    def close(self) -> None:
        """Forget what needs no settlement: the backlog queue cannot be reached."""
        self.is_open = False
        for message in [p for p in self._intake if isinstance(p.outcome, Release | Defer)]:
            self._intake.forget(message)

    def open(self, now: float) -> list[Action]:
        """Settle what is unconfirmed: the backlog queue can be reached again."""
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
