"""Strict session order (docs/failures.md): a pump sends the messages of each session one by one.

The next message of a session is sent when the primary has accepted the one before it and the
backlog queue has confirmed that. So a crash can duplicate one message of a session, and the copy
comes right after it. Messages without a session are sent as in any pump.
"""

from __future__ import annotations

from typing import Final

from twinbus.syphon.core.actions import Action, Complete, DeadLetter, PeekForOrder
from twinbus.syphon.core.destination import DeferredMessages, Destination, Destinations
from twinbus.syphon.core.intake import Intake, Settlements
from twinbus.syphon.core.receive_control import ReceiveControl
from twinbus.syphon.core.send_control import SendControl
from twinbus.syphon.core.session_lanes import PeekedEntry, SessionLanes
from twinbus.transfer.unpacking import BacklogMessage

IN_MEMORY_SHARE: Final = 8
"""One session may have 1/8 of the pump's messages in memory, so that a long session does not keep
the others out. The rest is deferred, and received by number when its turn comes."""

CHECK_S: Final = 2.0
"""Between two peeks for a message that a session waits for and that does not come."""


class StrictOrder:
    """Lets each session of one pump go on when it is its turn."""

    def __init__(
        self,
        lanes: SessionLanes,
        *,
        destinations: Destinations,
        intake: Intake,
        settlements: Settlements,
        deferred: DeferredMessages,
        receiving: ReceiveControl,
        sending: SendControl,
    ) -> None:
        self.lanes = lanes
        self.check_at: float | None = None
        """When to peek for a message that a session waits for; None: no session waits."""
        self._destinations = destinations
        self._intake = intake
        self._settlements = settlements
        self._deferred = deferred
        self._receiving = receiving
        self._sending = sending
        self._peeking_from: int | None = None
        """Start of the pending peek."""
        self._peek_after = 0.0
        """No peek before that time: the last one failed."""
        self._checked = 0

    def advance(self, now: float) -> list[Action]:
        """Let every session go on as far as it may."""
        if self._receiving.paused:
            return [
                action
                for key in self._destinations.by_key
                for action in self._settlements.release(self.lanes.take_waiting(key), now)
            ]
        actions: list[Action] = []
        while lanes := self.lanes.take_changed():
            served: dict[str, Destination] = {}
            for lane in lanes:
                destination = self._destinations.add(lane.path)
                message = self.lanes.next_to_go(lane)
                if message is not None:
                    destination.waiting.append(message)
                served[lane.destination] = destination
            for destination in served.values():
                actions += self._sending.serve(destination, now)
            for lane in lanes:
                actions += self._settlements.defer(self.lanes.out_of_turn(lane), now)
        if self.lanes.is_stuck and self.check_at is None:
            self.check_at = now + CHECK_S
        return actions + self._peek(self.lanes.peek_from(), now)

    # Settlements

    def settled(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """Go on after the backlog queue confirmed what was decided about these."""
        actions: list[Action] = []
        for message in messages:
            if message.outcome is Complete or isinstance(message.outcome, DeadLetter):
                actions += self._finish(message, now)
        return actions + self.advance(now)

    def settle_failed(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        """Go on after the backlog queue refused what was decided about these."""
        actions: list[Action] = []
        for message in messages:
            if message.accepted:
                # The primary has it, so the next may go; it is completed when it comes again.
                actions += self._finish(message, now)
                if message.is_deferred:
                    # The queue delivers it only if it is received by number.
                    destination = self._destinations.add(message.path)
                    self._deferred.add(destination, message.sequence_number, now)
        return actions + self.advance(now)

    def _finish(self, message: BacklogMessage, now: float) -> list[Action]:
        """Settle the other copy of a message that needs no more sending, if there is one."""
        copy = self.lanes.finish(message)
        if copy is None or copy not in self._intake:
            return []
        if not message.accepted:
            return self._settlements.release([copy], now)
        copy.accepted = True
        return self._settlements.complete([copy], now)

    # Peeks

    def disconnected(self) -> None:
        """Forget pending requests: the link to the backlog queue is gone."""
        self._peeking_from = None
        self.lanes.fetch_ended()

    def peeked(self, page: list[PeekedEntry], now: float, *, failed: bool) -> list[Action]:
        """Take the answer to a `PeekForOrder`: one page of messages; or note that it failed."""
        start, self._peeking_from = self._peeking_from, None
        if failed:
            self._peek_after = self.check_at = now + CHECK_S
            return []
        if start is None:
            return []
        # Sessions that are not served have no turn, and must not fill the memory.
        is_selected = self._destinations.is_selected
        page = [e if is_selected(e.path) else e._replace(session=None) for e in page]
        self._checked = self.lanes.peeked(start, page)
        return self.advance(now)

    def tick(self, now: float) -> list[Action]:
        """Peek for a message that a session waits for, when that is due."""
        actions: list[Action] = []
        if self.check_at is not None and now >= self.check_at:
            self.check_at = None
            if self._receiving.allowed(now) and self.lanes.peek_from() is None:
                actions += self._peek(self.lanes.recheck_from(self._checked), now)
        return actions + self.advance(now)

    def _peek(self, start: int | None, now: float) -> list[Action]:
        """Peek at the queue from a number on, unless that is not possible now."""
        if start is None or self._peeking_from is not None or not self._settlements.is_open:
            return []
        if now < self._peek_after:
            return []
        self._peeking_from = start
        self.lanes.peek_started()
        return [PeekForOrder(start)]
