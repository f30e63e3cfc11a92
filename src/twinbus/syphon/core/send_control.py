"""What a pump sends to each destination, and what it does with messages that cannot be sent."""

from __future__ import annotations

from typing import Final

from twinbus.servicebus.conditions import MESSAGE_SIZE, SERVER_BUSY
from twinbus.servicebus.failures import FailureMeaning, of_condition
from twinbus.syphon.core.actions import (
    Action,
    CloseDestination,
    Forward,
    OpenDestination,
    Reconnect,
    WaitUntil,
)
from twinbus.syphon.core.destination import (
    ANY_NUMBER,
    ATTACH_ANSWER_S,
    Destination,
    Destinations,
    WaitingMessages,
)
from twinbus.syphon.core.intake import Intake, Settlements
from twinbus.syphon.core.pacing import Pace
from twinbus.syphon.core.receive_control import ReceiveControl
from twinbus.transfer.unpacking import BacklogMessage

MISSING: Final = "DestinationNotFound"
TOO_LARGE_REASON: Final = "MessageTooLarge"
REFUSED: Final = "RefusedByDestination"


class SendControl:
    """Decides what one pump sends, defers and dead-letters."""

    def __init__(
        self,
        destinations: Destinations,
        settlements: Settlements,
        waiting: WaitingMessages,
        receiving: ReceiveControl,
        intake: Intake,
    ) -> None:
        self._intake = intake
        self._destinations = destinations
        self._settlements = settlements
        self._waiting = waiting
        self._receiving = receiving
        self._waits_until = float("-inf")
        self._lacks_room = False
        """Something waits because too much was sent that is not settled."""

    def serve(self, destination: Destination, now: float) -> list[Action]:
        """Send a destination what waits for it, as far as it takes it; defer it if it is held."""
        actions: list[Action] = []
        if destination.held_until is not None:
            actions += self.defer_waiting(destination, now)
        if self._waiting.has_deferred(destination):
            actions += self._receiving.fetch(destination, now)
        # Nothing is received from a twin before its home can be reached.
        is_wanted = destination.waiting or destination is self._destinations.home
        if destination.is_held or not self._destinations.is_primary_up or not is_wanted:
            return actions
        if not destination.attached:
            if destination.attach_at is None:
                destination.attach_at = now
                actions.append(OpenDestination(destination.path))
            return actions
        sent, limit_bytes = destination.sent, destination.limit_bytes
        settlements, remembered = self._settlements, self._settlements.remembered
        intake, pace = self._intake, self._receiving.pace
        if pace is not None and pace.governor.is_open:
            pace = None
        if not self._has_room(destination):
            return actions  # Before the rate gives it a slice.
        most = ANY_NUMBER
        if pace is not None:
            most = destination.ready
            pace.is_working = True
            most = pace.allowed(destination.path.lower(), most, now) if most else 0
        while destination.waiting and destination.credit > 0 and len(sent) < destination.window:
            if not most:
                break
            most -= 1
            if intake.send_room <= 0 and not self._has_room(destination):
                break
            message = destination.next_waiting()
            # While it waited, the primary may have accepted an earlier delivery of it.
            if remembered and (known := settlements.complete_known(message, now)) is not None:
                actions += known
                continue
            if 0 < limit_bytes < len(message.wire):
                size = len(message.wire)
                text = f"the message has {size} bytes; {destination.path} accepts {limit_bytes}"
                actions += self._settlements.dead_letter(message, TOO_LARGE_REASON, text, now)
                continue
            destination.credit -= 1
            message.sent_at = now
            if not message.was_sent:
                message.was_sent = True
                intake.send_room -= 1
            sent[message.lock_token] = message
            actions.append(Forward(message))
        return actions if pace is None else actions + self._wait_for(pace)

    def _has_room(self, destination: Destination) -> bool:
        """Whether its next message, if there is one, may be sent beside all that is not settled.

        One that was sent before may: the primary may have it already.
        """
        if self._intake.send_room > 0 or not destination.waiting:
            return True
        if destination.unsorted:
            destination.sort_waiting()
        if destination.waiting[0].was_sent:
            return True
        self._lacks_room = True
        return False

    def use_room(self, now: float) -> list[Action]:
        """Send what waited until others were settled, the oldest messages first."""
        if not self._lacks_room or self._intake.send_room <= 0:
            return []
        self._lacks_room = False
        waiting = [each for each in self._destinations if each.waiting]
        waiting.sort(key=lambda each: each.waiting[0].sequence_number)
        return [action for destination in waiting for action in self.serve(destination, now)]

    def _wait_for(self, pace: Pace) -> list[Action]:
        until = pace.wake_at
        if until is None or until <= self._waits_until:
            return []
        self._waits_until = until
        return [WaitUntil(until)]

    def woken(self, pace: Pace, now: float) -> list[Action]:
        """Serve what waited for the rate; wait again if the timer was early.

        The timers of an event loop may be a millisecond early (uvloop rounds).
        """
        self._waits_until = float("-inf")
        return self.serve_by_rate(pace, now) + self._wait_for(pace)

    def serve_by_rate(self, pace: Pace, now: float) -> list[Action]:
        """Serve the destinations whose slice of the rate has come."""
        actions: list[Action] = []
        while (key := pace.next_destination()) is not None and now >= (pace.wake_at or now):
            destination = self._destinations.by_key.get(key)
            is_ready = destination is not None and destination.ready
            if not is_ready or not self._destinations.is_primary_up or pace.governor.is_open:
                pace.remove(key)
            if destination is not None:
                actions += self.serve(destination, now)
        return actions

    # Destinations that take nothing

    def defer_waiting(self, destination: Destination, now: float) -> list[Action]:
        """Defer or dead-letter what waits for a held destination, except one message to try it."""
        if not self._waiting.has_any(destination):
            return []
        if not destination.is_selected:
            return self._settlements.defer(self._waiting.take_all(destination), now)
        grace_s = self._destinations.grace_s
        if destination.is_given_up(grace_s, now) and not destination.is_on_trial:
            text = (
                f"{destination.path} is missing from the primary "
                f"(undeliverable_grace {grace_s:g} s): {destination.reason}"
            )
            return [
                action
                for message in self._waiting.take_all(destination)
                for action in self._settlements.dead_letter(message, MISSING, text, now)
            ]
        if destination is self._destinations.home:
            # Its consumers may take them meanwhile.
            if destination.is_on_trial:
                return []
            return self._settlements.release(self._waiting.take_all(destination), now)
        if not self._receiving.others_progress(now):
            return self._receiving.grant(now)
        is_to_try = destination.is_on_trial and destination.waiting and not destination.sent
        tried = [destination.next_waiting()] if is_to_try else []
        actions = self._settlements.defer(self._waiting.take_all(destination), now)
        destination.waiting.extend(tried)
        return actions

    def defer_all_held(self, now: float) -> list[Action]:
        """Defer what waits for held destinations, and receive what comes after it."""
        actions: list[Action] = []
        for destination in self._destinations.held_ones():
            actions += self.defer_waiting(destination, now)
        return actions + self._receiving.grant(now)

    def hold(
        self, destination: Destination, text: str, now: float, *, is_missing: bool = False
    ) -> list[Action]:
        """Send a destination nothing until its back-off is over.

        `is_missing`: it does not exist; its grace period starts once.
        """
        if is_missing and destination.missing_since is None:
            destination.missing_since = now
        destination.hold(text, now, self._destinations.draw())
        self._destinations.held.add(destination.path.lower())
        actions = self.defer_waiting(destination, now) + self._receiving.grant(now)
        return actions + self._receiving.peek_ahead(now)

    # Time

    def tick(self, destination: Destination, answer_s: float, now: float) -> list[Action]:
        """Do what is due for a destination; it has `answer_s` seconds for each answer."""
        if destination.held_until is not None and not destination.is_on_trial:
            if now >= destination.held_until:
                destination.start_trial()
            return self.serve(destination, now)
        attach_s = min(answer_s, ATTACH_ANSWER_S)
        if destination.attach_at is not None and now >= destination.attach_at + attach_s:
            text = f"an attach to {destination.path} was not answered for {attach_s:g} s"
            return self.give_up_attach(destination, text, now)
        if destination.sent and now >= (destination.due_at(answer_s) or 0.0):
            destination.drop_link()
            text = f"a message was not answered for {answer_s:g} s"
            return [CloseDestination(destination.path), *self.hold(destination, text, now)]
        if destination.is_on_trial or self._waiting.has_deferred(destination):
            return self.serve(destination, now)
        return []

    def close_idle(self, now: float) -> list[Action]:
        """Close the links that are not used, and forget their destinations."""
        by_key = self._destinations.by_key
        idle = [
            key
            for key, each in by_key.items()
            if each.is_idle(now)
            and each is not self._destinations.home
            and not (self._waiting.has_any(each) or self._waiting.has_deferred(each))
        ]
        if idle:
            # What is received and not settled still needs its destination.
            in_hand = {message.destination for message in self._receiving.messages}
            idle = [key for key in idle if key not in in_hand]
        closed = [by_key.pop(key) for key in idle]
        return [CloseDestination(each.path) for each in closed if each.attached]

    def give_up_attach(self, destination: Destination, text: str, now: float) -> list[Action]:
        """Close the link of one entity that hangs; reconnect if the primary answers nothing."""
        asked_at = destination.attach_at
        assert asked_at is not None
        destination.drop_link()
        is_alive = self._destinations.primary_answered_at > asked_at
        ended = CloseDestination(destination.path) if is_alive else Reconnect("primary", text)
        return [ended, *self.hold(destination, text, now)]

    # Refusals

    def detached(
        self, destination: Destination, condition: str | None, text: str, now: float
    ) -> list[Action]:
        """Handle the end of a link: refused, or closed with messages that may have arrived."""
        was_attached, progressed = destination.attached, destination.progressed
        back = destination.drop_link()
        self._note_busy(condition, destination, now)
        meaning = of_condition(condition)
        if meaning is FailureMeaning.NOT_FOUND:
            return self.hold(destination, text, now, is_missing=True)
        if was_attached and meaning is FailureMeaning.MESSAGE and back:
            if len(back) == 1:
                destination.waiting.remove(back[0])
                return self._dead_letter(back[0], destination, condition, text, now)
            # Sent one at a time, the next detach shows which of them is refused.
            destination.is_careful = True
            destination.window = 1
            return self.serve(destination, now)
        if was_attached and (progressed or not back):
            # An idle link that the service closed is no failure (docs/guarantees.md).
            is_home = destination is self._destinations.home
            return self.serve(destination, now) if destination.waiting or is_home else []
        return self.hold(destination, text, now)

    def refused(
        self,
        message: BacklogMessage,
        destination: Destination,
        condition: str | None,
        text: str,
        now: float,
    ) -> list[Action]:
        """Dead-letter a message that was refused for its content; else hold its destination."""
        meaning = of_condition(condition)
        self._note_busy(condition, destination, now)
        if meaning is FailureMeaning.MESSAGE:
            return self._dead_letter(message, destination, condition, text, now)
        destination.waiting.appendleft(message)
        destination.unsorted = True
        is_missing = meaning is FailureMeaning.NOT_FOUND
        return self.hold(destination, text, now, is_missing=is_missing)

    def _note_busy(self, condition: str | None, destination: Destination, now: float) -> None:
        if condition == SERVER_BUSY and self._receiving.pace is not None:
            self._receiving.pace.governor.busy(now, destination.accepted_at)

    def _dead_letter(
        self,
        message: BacklogMessage,
        destination: Destination,
        condition: str | None,
        text: str,
        now: float,
    ) -> list[Action]:
        """Dead-letter a message that its destination will never take, and send the next."""
        reason = TOO_LARGE_REASON if condition == MESSAGE_SIZE else REFUSED
        text = f"{destination.path}: {text}"
        actions = self._settlements.dead_letter(message, reason, text, now)
        return actions + self.serve(destination, now)
