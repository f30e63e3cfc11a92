"""One backlog queue: what is received, where it is sent, and when it may be completed (SPEC 6).

    received --> waiting --Forward--> sent --accepted--> settling --confirmed--> gone
        |           ^                  |                    ^
        |           '--- link lost, ---'                    |
        |                entity refuses                     |
        '-- no destination, refused for what it is: DeadLetter; destination held: Defer, Release

A message is completed only after the primary accepted it. What happens at the wrong moment costs a
duplicate, never a message: the source's lock is the only memory that has to survive a crash. One
thing is remembered on top, for fewer duplicates: which messages the primary has whose completion
is not known.

Pure: the relay calls a method for each thing that happened, with the time, performs the actions it
gets back, and calls `tick` at `timer_at`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from twinbus.syphon.core.actions import (
    Action,
    CloseDestination,
    Complete,
    DeadLetter,
    Defer,
    EmptyPoll,
    LookForDeferred,
    Reconnect,
    Renew,
)
from twinbus.syphon.core.backlog_message import BacklogMessage
from twinbus.syphon.core.decisions import Decisions
from twinbus.syphon.core.destination import Destination, RefusalMeaning, meaning_of
from twinbus.syphon.core.intake import RENEW_AFTER, IntakeLimits
from twinbus.syphon.core.session_lanes import PeekedEntry

__all__ = ["IntakeLimits", "Pump"]

ASKED: Final = "a person asked for it"
"""The usual reason for a pause."""


class Pump(Decisions):
    """Everything that can happen to one backlog queue, and what follows from it."""

    # What the relay may ask

    @property
    def in_flight(self) -> int:
        """Messages received and not yet settled."""
        return len(self._intake)

    @property
    def bytes_in_flight(self) -> int:
        return self._intake.size_bytes

    @property
    def credit(self) -> int:
        """Messages that the backlog queue may still send."""
        return self._intake.credit

    @property
    def held(self) -> dict[str, str]:
        """The destinations that take nothing now, and why."""
        held = (self._destinations[key] for key in self._held)
        # One on trial without a message to be tried with may be well again: nobody knows.
        return {d.path: d.reason for d in held if d.is_held or d.sent or d.waiting}

    @property
    def given_up_at(self) -> dict[str, float]:
        """The destinations that are missing, and when their messages are dead-lettered."""
        return {
            destination.path: destination.missing_since + self._grace_s
            for destination in self._destinations.values()
            if destination.missing_since is not None
        }

    def attaches_to(self, path: str) -> bool:
        """Whether a link to a destination is waited for."""
        destination = self._destinations.get(path.lower())
        return destination is not None and destination.attach_at is not None

    @property
    def is_paused(self) -> bool:
        """Whether somebody asked for a pause."""
        return ASKED in self._paused

    @property
    def timer_at(self) -> float | None:
        """When `tick` is next worth calling; None: only something that happens can matter."""
        answer_s = self.limits.answer_s
        moments = [
            moment
            for destination in self._destinations.values()
            if (moment := destination.due_at(answer_s)) is not None
        ]
        renewal_at = self._intake.first_renewal_at()
        if renewal_at is not None:
            moments.append(renewal_at)
        if self.credit:
            moments.append(self._poll_at)
        if (ahead_at := self._ahead.due_at) is not None and self._held:
            moments.append(ahead_at)
        if (look_at := self._look_at()) is not None:
            moments.append(look_at)
        if self.pace is not None and self.pace.wake_at is not None:
            moments.append(self.pace.wake_at)
        return min(moments, default=None)

    # Connections

    def primary_up(self, now: float) -> list[Action]:
        """The primary can be reached."""
        self._primary = True
        self._heard_at = now
        actions: list[Action] = []
        for destination in self._destinations.values():
            if destination.waiting:
                actions += self._serve(destination, now)
        return actions + self._grant(now)

    def primary_down(self, now: float) -> list[Action]:
        """The connection to the primary is gone; what was in flight may have arrived, or not."""
        self._primary = False
        for destination in self._destinations.values():
            destination.drop_link()
        return self._grant(now)

    def secondary_up(self, now: float) -> list[Action]:
        """The backlog queue can be received from; what was decided meanwhile is settled now."""
        self._intake.credit = 0
        self._aside.begin(now)
        self._poll_at = now + self._poll_s
        actions = self._settlements.open(now)
        # Their locks may be gone, and then they are delivered once more: both would be sent.
        for destination in self._destinations.values():
            actions += self._settlements.release(self._take_waiting(destination), now)
        return actions + self._grant(now)

    def secondary_down(self, now: float) -> list[Action]:
        """The link to the backlog queue is gone; locks, and what is in flight, live on."""
        if self._intake.fetching or self._intake:
            # Whether those came, or were deferred as decided, is not known; a look finds them.
            self._aside.may_hold_more(now)
        self._intake.credit = self._intake.fetching = 0
        self._ahead.cut_off(now)
        self._settlements.close()
        return []

    def pause(self, now: float, why: str = ASKED) -> list[Action]:
        """Receive nothing more and give back what was not sent; what was sent comes to its end."""
        self._paused.add(why)
        actions: list[Action] = []
        for destination in self._destinations.values():
            actions += self._settlements.release(self._take_waiting(destination), now)
        return actions + self._grant(now)

    def resume(self, now: float, why: str = ASKED) -> list[Action]:
        """Receive again, once no other reason to pause is left."""
        self._paused.discard(why)
        return self._grant(now)

    # The source

    def received(self, parcel: BacklogMessage, now: float) -> list[Action]:
        """A message came from the backlog queue."""
        is_surprise = self._intake.add(parcel, now)
        self._poll_at = now + self._poll_s
        self._aside.something_came(now)
        if not parcel.is_deferred:
            self._ahead.came(parcel.sequence_number, now)
        if parcel.fault is not None and self._is_selected(parcel.path):
            return self._settlements.dead_letter(parcel, *parcel.fault, now)
        if self._intake.recall(parcel):
            parcel.accepted = True
            return self._settlements.complete([parcel], now)
        destination = self._destinations.get(parcel.destination) or self._destination(parcel.path)
        if destination.is_selected:
            self._admit(parcel, destination)
        else:
            destination.waiting.append(parcel)
        actions = self._serve(destination, now)
        return actions + self._grant(now) if is_surprise else actions

    def received_all(self, parcels: list[BacklogMessage], now: float) -> list[Action]:
        """Messages came from the backlog queue, in one read."""
        actions: list[Action] = []
        for parcel in parcels:
            actions += self.received(parcel, now)
        return actions

    def settled(self, parcels: Iterable[BacklogMessage], now: float) -> list[Action]:
        """The backlog queue confirmed what was decided about these."""
        gone = 0
        for parcel in parcels:
            outcome = parcel.outcome
            if not self._intake.forget(parcel):
                continue
            if outcome is Complete:
                self.completed += 1
                gone += 1
            elif isinstance(outcome, DeadLetter):
                self.dead_lettered += 1
                gone += 1
            elif isinstance(outcome, Defer):
                self.deferred += 1
                if self._is_selected(parcel.path):
                    self._is_aside(parcel, now)
                else:
                    self.left_aside += 1
            elif parcel.is_deferred:
                # It was received by number and let go: the queue never delivers it itself.
                self._is_aside(parcel, now)
        self.meter.moved(gone, now)
        return self._grant(now)

    def settle_failed(self, parcels: Iterable[BacklogMessage], now: float) -> list[Action]:
        """The backlog queue did not take the decision: it will deliver these again."""
        for parcel in parcels:
            if self._intake.forget(parcel):
                if parcel.accepted:
                    self._intake.remember(parcel)
                if parcel.is_deferred:
                    self._is_aside(parcel, now)
        return self._grant(now)

    def renewed(self, parcels: Iterable[BacklogMessage], now: float) -> list[Action]:
        """The locks of these run anew."""
        for parcel in parcels:
            self._intake.renew_later(parcel, now + parcel.lock_s * RENEW_AFTER)
        return []

    def lock_lost(self, parcels: Iterable[BacklogMessage], now: float) -> list[Action]:
        """The locks of these are gone: what was not sent need not be, it comes again."""
        for parcel in parcels:
            destination = self._destinations.get(parcel.destination)
            if destination is None or parcel.lock_token in destination.sent:
                continue
            if self._withdraw(parcel, destination):
                self._intake.forget(parcel)
                if parcel.is_deferred:
                    self._is_aside(parcel, now)
        return self._grant(now)

    # The destinations

    def attached(self, path: str, limit_bytes: int, now: float) -> list[Action]:
        """The link to a destination is open; credit comes by itself."""
        self._heard_at = now
        destination = self._destinations.get(path.lower())
        if destination is not None and destination.attach_at is not None:
            destination.attach_at = None
            destination.attached = True
            destination.limit_bytes = limit_bytes
            destination.missing_since = None
        return []

    def authorized(self, now: float) -> list[Action]:
        """The primary allowed a link that it was asked for; the attach comes next."""
        self._heard_at = now
        return []

    def unanswered(self, path: str, text: str, now: float) -> list[Action]:
        """Nobody said whether a destination may be attached to, in the time there is for that."""
        destination = self._destinations.get(path.lower())
        if destination is None or destination.attach_at is None:
            return []
        return self._give_up_attach(destination, text, now)

    def granted(self, path: str, credit: int, now: float) -> list[Action]:
        """The destination takes `credit` messages from now on."""
        destination = self._destinations.get(path.lower())
        if destination is None or not destination.attached:
            return []
        destination.credit = credit
        return self._serve(destination, now)

    def detached(self, path: str, condition: str | None, text: str, now: float) -> list[Action]:
        """A destination refused the link, or closed it; what was in flight may have arrived."""
        self._heard_at = now
        destination = self._destinations.get(path.lower())
        if destination is None or not (destination.attached or destination.attach_at is not None):
            return []
        was_attached, progressed = destination.attached, destination.progressed
        back = destination.drop_link()
        meaning = meaning_of(condition)
        if meaning is RefusalMeaning.MISSING:
            return self._missing(destination, text, now)
        if was_attached and meaning is RefusalMeaning.MESSAGE and back:
            return self._one_is_bad(destination, back, condition, text, now)
        if was_attached and (progressed or not back):
            # An idle link that the service closed is no failure (SPEC 6).
            return self._serve(destination, now) if destination.waiting else []
        return self._hold(destination, text, now)

    def accepted(self, parcels: list[BacklogMessage], now: float) -> list[Action]:
        """The primary has these: now, and not before, they may be completed."""
        self._heard_at = now
        taken: list[BacklogMessage] = []
        served: dict[str, Destination] = {}
        for parcel in parcels:
            if parcel.accepted or parcel not in self._intake:
                continue
            destination = self._destinations[parcel.destination]
            if destination.sent.pop(parcel.lock_token, None) is None:
                # It was thought lost with its link, and waits to be sent again.
                destination.waiting.remove(parcel)
            parcel.accepted = True
            parcel.wire = b""
            taken.append(parcel)
            served[parcel.destination] = destination
        self.forwarded += len(taken)
        actions = self._settlements.complete(taken, now) if taken else []
        for destination in served.values():
            destination.succeeded(now)
            if destination.held_until is None:
                self._held.discard(destination.path.lower())
            if destination.waiting or self._has_aside(destination):
                actions += self._serve(destination, now)
        return actions

    def refused(
        self, parcel: BacklogMessage, condition: str | None, text: str, now: float
    ) -> list[Action]:
        """The destination did not take a parcel: for what the parcel is, or for what it is."""
        self._heard_at = now
        destination = self._destinations.get(parcel.destination)
        if destination is None or destination.sent.pop(parcel.lock_token, None) is None:
            return []
        meaning = meaning_of(condition)
        if meaning is RefusalMeaning.MESSAGE:
            return self._bad(parcel, destination, condition, text, now)
        destination.return_to_waiting(parcel)
        if meaning is RefusalMeaning.MISSING:
            return self._missing(destination, text, now)
        return self._hold(destination, text, now)

    # Deferred messages

    def fetched(self, numbers: list[int], now: float, *, failed: bool = False) -> list[Action]:
        """A `Fetch` ended, after `received` for each that came."""
        self._intake.fetching = max(0, self._intake.fetching - len(numbers))
        if failed:
            self._aside.may_hold_more(now)
            return self._grant(now)
        return self._fetch_all(now)

    def found_deferred(self, found: list[PeekedEntry], now: float, *, is_all: bool) -> list[Action]:
        """A look ended, with these deferred messages. The next look is for the rest."""
        self._aside.looked(now, is_all=is_all)
        # Of a queue that was not quiet some are in hand already.
        in_hand = {parcel.sequence_number for parcel in self._intake}
        for sighting in found:
            if self._is_selected(sighting.path) and sighting.number not in in_hand:
                self._found(sighting, now)
        return self._fetch_all(now)

    def looked_ahead(
        self, page: list[PeekedEntry], now: float, *, failed: bool = False
    ) -> list[Action]:
        """A `LookAhead` ended: what the queue holds from there on, as far as the page goes."""
        if not self._ahead.is_asked:
            return []
        if failed or not self._is_stalled(now):
            self._ahead.cut_off(now)
            return []
        for sighting in page:
            if self._is_worth_finding(sighting):
                self._ahead.found(sighting.number, now)
                return self._make_way(now)
        self._ahead.nothing(page[-1].number if page else None, now)
        return self._look_ahead(now)

    def _make_way(self, now: float) -> list[Action]:
        """Set aside what waits for held destinations, and receive what comes behind it."""
        actions: list[Action] = []
        for key in self._held:
            actions += self._set_waiting_aside(self._destinations[key], now)
        return actions + self._grant(now)

    # Time

    def tick(self, now: float) -> list[Action]:
        """Do what is due."""
        actions: list[Action] = []
        for key, destination in self._destinations.items():
            if destination.is_late(now):
                destination.doubt(now)
                self._held.add(key)
        for destination in self._destinations.values():
            actions += self._tick_destination(destination, now)
        actions += self._tick_locks(now)
        if self.credit and now >= self._poll_at:
            self._poll_at = now + self._poll_s
            actions.append(EmptyPoll())
        if self.pace is not None:
            actions += self._serve_in_line(self.pace, now)
        if (look_at := self._look_at()) is not None and now >= look_at:
            self._aside.looking(now)
            actions.append(LookForDeferred(to_the_end=self._is_quiet))
        self._ahead.tick(now)
        return actions + self._grant(now) + self._look_ahead(now)

    def _tick_destination(self, destination: Destination, now: float) -> list[Action]:
        answer_s = self.limits.answer_s
        if destination.held_until is not None and not destination.is_on_trial:
            if now >= destination.held_until:
                destination.probe()
            return self._serve(destination, now)
        if destination.attach_at is not None and now >= destination.attach_at + answer_s:
            text = f"an attach to {destination.path} was not answered for {answer_s:g} s"
            return self._give_up_attach(destination, text, now)
        if destination.sent and now >= (destination.due_at(answer_s) or 0.0):
            destination.drop_link()
            text = f"a message was not answered for {answer_s:g} s"
            return [CloseDestination(destination.path), *self._hold(destination, text, now)]
        if destination.is_on_trial or self._has_aside(destination):
            return self._serve(destination, now)
        return []

    def _give_up_attach(self, destination: Destination, text: str, now: float) -> list[Action]:
        """One entity that hangs costs its own link; a line on which nobody answers is dead."""
        asked_at = destination.attach_at
        assert asked_at is not None
        destination.drop_link()
        is_heard = self._heard_at > asked_at
        ended = CloseDestination(destination.path) if is_heard else Reconnect("primary", text)
        return [ended, *self._hold(destination, text, now)]

    def _tick_locks(self, now: float) -> list[Action]:
        renewed: list[BacklogMessage] = []
        actions: list[Action] = []
        for parcel in self._intake.due(now):
            # If nothing is heard of it, it comes up again before the lock ends.
            self._intake.renew_later(parcel, now + max(1.0, parcel.lock_s * RENEW_AFTER / 2))
            if parcel.outcome is not None:
                if self._settlements.is_open and now >= parcel.settling_at + self.limits.answer_s:
                    text = f"a settlement was not answered for {self.limits.answer_s:g} s"
                    actions = [Reconnect("secondary", text)]
            elif self._lets_go(parcel, self._destinations[parcel.destination]):
                actions += self._settlements.release([parcel], now)
            else:
                renewed.append(parcel)
        if renewed and self._settlements.is_open:
            actions.append(Renew(renewed))
        return actions
