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

from twinbus.syphon.actions import (
    Action,
    Attach,
    Complete,
    DeadLetter,
    Defer,
    Detach,
    EmptyPoll,
    Fetch,
    Forward,
    Grant,
    LookForDeferred,
    Reconnect,
    Renew,
)
from twinbus.syphon.aside import Aside
from twinbus.syphon.destination import TOO_LARGE, Destination, Meaning, meaning_of
from twinbus.syphon.intake import RENEW_AFTER, Intake, Limits
from twinbus.syphon.parcel import Parcel
from twinbus.syphon.settlements import Settlements

__all__ = ["Limits", "Pump"]

MISSING: Final = "DestinationNotFound"
TOO_LARGE_REASON: Final = "MessageTooLarge"
REFUSED: Final = "RefusedByDestination"


class Pump:
    """Decides for one backlog queue."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        undeliverable_grace_s: float = 21_600.0,
        poll_s: float = 900.0,
    ) -> None:
        self.limits = limits or Limits()
        self.forwarded = self.completed = self.dead_lettered = self.deferred = 0
        self._intake = Intake(self.limits)
        self._settlements = Settlements(self._intake)
        self._grace_s = undeliverable_grace_s
        self._poll_s = poll_s
        self._primary = self._paused = False
        self._destinations: dict[str, Destination] = {}
        self._held: set[str] = set()
        self._poll_at = 0.0
        self._aside = Aside()

    def __repr__(self) -> str:
        return (
            f"<pump, {len(self._intake)} in flight, credit {self.credit}, "
            f"{list(self._destinations.values())}>"
        )

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
        return {self._destinations[key].path: self._destinations[key].reason for key in self._held}

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
        if self._aside.look_at is not None and self._may_look():
            moments.append(self._aside.look_at)
        return min(moments, default=None)

    # Connections

    def primary_up(self, now: float) -> list[Action]:
        """The primary can be reached."""
        self._primary = True
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
        self._poll_at = now + self._poll_s
        return self._settlements.open(now) + self._grant(now)

    def secondary_down(self, now: float) -> list[Action]:
        """The link to the backlog queue is gone; locks, and what is in flight, live on."""
        if self._intake.fetching:
            # Whether those came is not known; a look finds the ones that did not.
            self._aside.may_hold_more(now)
        self._intake.credit = self._intake.fetching = 0
        self._settlements.close()
        return []

    def pause(self, now: float) -> list[Action]:
        """Receive nothing more and give back what was not sent; what was sent comes to its end."""
        self._paused = True
        actions: list[Action] = []
        for destination in self._destinations.values():
            actions += self._settlements.release(destination.take_waiting(), now)
        return actions + self._grant(now)

    def resume(self, now: float) -> list[Action]:
        """Receive again."""
        self._paused = False
        return self._grant(now)

    # The source

    def received(self, parcel: Parcel, now: float) -> list[Action]:
        """A message came from the backlog queue."""
        is_surprise = self._intake.add(parcel, now)
        self._poll_at = now + self._poll_s
        self._aside.something_came(now)
        if parcel.fault is not None:
            return self._settlements.dead_letter(parcel, *parcel.fault, now)
        if self._intake.recall(parcel):
            parcel.accepted = True
            return self._settlements.complete([parcel], now)
        destination = self._destinations.get(parcel.destination) or self._destination(parcel.path)
        destination.waiting.append(parcel)
        actions = self._serve(destination, now)
        return actions + self._grant(now) if is_surprise else actions

    def settled(self, parcels: Iterable[Parcel], now: float) -> list[Action]:
        """The backlog queue confirmed what was decided about these."""
        for parcel in parcels:
            outcome = parcel.outcome
            if not self._intake.forget(parcel):
                continue
            if outcome is Complete:
                self.completed += 1
            elif isinstance(outcome, DeadLetter):
                self.dead_lettered += 1
            elif isinstance(outcome, Defer):
                self.deferred += 1
                destination = self._destinations[parcel.destination]
                self._aside.add(destination, parcel.sequence_number, now)
        return self._grant(now)

    def settle_failed(self, parcels: Iterable[Parcel], now: float) -> list[Action]:
        """The backlog queue did not take the decision: it will deliver these again."""
        for parcel in parcels:
            if self._intake.forget(parcel) and parcel.accepted:
                self._intake.remember(parcel)
        return self._grant(now)

    def renewed(self, parcels: Iterable[Parcel], now: float) -> list[Action]:
        """The locks of these run anew."""
        for parcel in parcels:
            self._intake.renew_later(parcel, now + parcel.lock_s * RENEW_AFTER)
        return []

    def lock_lost(self, parcels: Iterable[Parcel], now: float) -> list[Action]:
        """The locks of these are gone: what was not sent need not be, it comes again."""
        for parcel in parcels:
            destination = self._destinations.get(parcel.destination)
            if destination is None or parcel.lock_token in destination.sent:
                continue
            if parcel in destination.waiting:
                destination.waiting.remove(parcel)
                self._intake.forget(parcel)
        return self._grant(now)

    # The destinations

    def attached(self, path: str, limit_bytes: int, now: float) -> list[Action]:
        """The link to a destination is open; credit comes by itself."""
        destination = self._destinations.get(path.lower())
        if destination is not None and destination.attach_at is not None:
            destination.attach_at = None
            destination.attached = True
            destination.limit_bytes = limit_bytes
            destination.missing_since = None
        return []

    def granted(self, path: str, credit: int, now: float) -> list[Action]:
        """The destination takes `credit` messages from now on."""
        destination = self._destinations.get(path.lower())
        if destination is None or not destination.attached:
            return []
        destination.credit = credit
        return self._serve(destination, now)

    def detached(self, path: str, condition: str | None, text: str, now: float) -> list[Action]:
        """A destination refused the link, or closed it; what was in flight may have arrived."""
        destination = self._destinations.get(path.lower())
        if destination is None or not (destination.attached or destination.attach_at is not None):
            return []
        was_attached, progressed = destination.attached, destination.progressed
        back = destination.drop_link()
        meaning = meaning_of(condition)
        if meaning is Meaning.MISSING:
            return self._missing(destination, text, now)
        if was_attached and meaning is Meaning.MESSAGE and back:
            return self._one_is_bad(destination, back, condition, text, now)
        if was_attached and (progressed or not back):
            # An idle link that the service closed is no failure (SPEC 6).
            return self._serve(destination, now) if destination.waiting else []
        return self._hold(destination, text, now)

    def accepted(self, parcels: list[Parcel], now: float) -> list[Action]:
        """The primary has these: now, and not before, they may be completed."""
        taken: list[Parcel] = []
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
            if destination.waiting or destination.deferred:
                actions += self._serve(destination, now)
        return actions

    def refused(self, parcel: Parcel, condition: str | None, text: str, now: float) -> list[Action]:
        """The destination did not take a parcel: for what the parcel is, or for what it is."""
        destination = self._destinations.get(parcel.destination)
        if destination is None or destination.sent.pop(parcel.lock_token, None) is None:
            return []
        meaning = meaning_of(condition)
        if meaning is Meaning.MESSAGE:
            return self._bad(parcel, destination, condition, text, now)
        destination.return_to_waiting(parcel)
        if meaning is Meaning.MISSING:
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

    def found_deferred(
        self, found: list[tuple[int, str]], now: float, *, is_all: bool
    ) -> list[Action]:
        """A look ended: numbers and paths of deferred messages. The next look is for the rest."""
        self._aside.looked(now, is_all=is_all)
        for number, path in found:
            self._aside.add(self._destination(path), number, now)
        return self._fetch_all(now)

    # Time

    def tick(self, now: float) -> list[Action]:
        """Do what is due."""
        actions: list[Action] = []
        for destination in self._destinations.values():
            actions += self._tick_destination(destination, now)
        actions += self._tick_locks(now)
        if self.credit and now >= self._poll_at:
            self._poll_at = now + self._poll_s
            actions.append(EmptyPoll())
        look_at = self._aside.look_at
        if look_at is not None and now >= look_at and self._may_look():
            self._aside.looked(now, is_all=False)
            actions.append(LookForDeferred())
        return actions + self._grant(now)

    def _tick_destination(self, destination: Destination, now: float) -> list[Action]:
        answer_s = self.limits.answer_s
        if destination.held_until is not None:
            if now >= destination.held_until:
                destination.probe()
                self._held.discard(destination.path.lower())
            return self._serve(destination, now)
        if destination.attach_at is not None and now >= destination.attach_at + answer_s:
            destination.attach_at = None
            text = f"an attach to {destination.path} was not answered for {answer_s:g} s"
            return [Reconnect("primary", text), *self._hold(destination, text, now)]
        if destination.sent and now >= (destination.due_at(answer_s) or 0.0):
            destination.drop_link()
            text = f"a message was not answered for {answer_s:g} s"
            return [Detach(destination.path), *self._hold(destination, text, now)]
        return self._serve(destination, now) if destination.deferred else []

    def _tick_locks(self, now: float) -> list[Action]:
        renewed: list[Parcel] = []
        actions: list[Action] = []
        for parcel in self._intake.due(now):
            # If nothing is heard of it, it comes up again before the lock ends.
            self._intake.renew_later(parcel, now + max(1.0, parcel.lock_s * RENEW_AFTER / 2))
            if parcel.outcome is not None:
                if self._settlements.is_open and now >= parcel.settling_at + self.limits.answer_s:
                    text = f"a settlement was not answered for {self.limits.answer_s:g} s"
                    actions = [Reconnect("secondary", text)]
            elif self._destinations[parcel.destination].lets_go(parcel, is_up=self._primary):
                actions += self._settlements.release([parcel], now)
            else:
                renewed.append(parcel)
        if renewed and self._settlements.is_open:
            actions.append(Renew(renewed))
        return actions

    # Decisions

    def _serve(self, destination: Destination, now: float) -> list[Action]:
        """Send a destination what waits for it, as far as it may; or have it wait elsewhere."""
        if destination.held_until is not None:
            return self._set_waiting_aside(destination, now)
        actions: list[Action] = self._fetch(destination, now) if destination.deferred else []
        if not self._primary or not destination.waiting:
            return actions
        if not destination.attached:
            if destination.attach_at is None:
                destination.attach_at = now
                actions.append(Attach(destination.path))
            return actions
        sent = destination.sent
        while destination.waiting and destination.credit > 0 and len(sent) < destination.window:
            parcel = destination.next_waiting()
            if too_large := destination.finds_too_large(parcel):
                actions += self._settlements.dead_letter(parcel, TOO_LARGE_REASON, too_large, now)
                continue
            destination.credit -= 1
            parcel.sent_at = now
            sent[parcel.lock_token] = parcel
            actions.append(Forward(parcel))
        return actions

    def _set_waiting_aside(self, destination: Destination, now: float) -> list[Action]:
        if not destination.waiting:
            return []
        if destination.gave_up(self._grace_s, now):
            text = (
                f"{destination.path} does not exist in the primary, and did not for "
                f"{self._grace_s:g} s (undeliverable_grace): {destination.reason}"
            )
            return [
                action
                for parcel in destination.take_waiting()
                for action in self._settlements.dead_letter(parcel, MISSING, text, now)
            ]
        if not any(other.goes_on(now) for other in self._destinations.values()):
            return self._grant(now)
        return self._settlements.defer(destination.take_waiting(), now)

    def _missing(self, destination: Destination, text: str, now: float) -> list[Action]:
        if destination.missing_since is None:
            destination.missing_since = now
        return self._hold(destination, text, now)

    def _hold(self, destination: Destination, text: str, now: float) -> list[Action]:
        destination.hold(text, now)
        self._held.add(destination.path.lower())
        return self._set_waiting_aside(destination, now) + self._grant(now)

    def _one_is_bad(
        self,
        destination: Destination,
        back: list[Parcel],
        condition: str | None,
        text: str,
        now: float,
    ) -> list[Action]:
        """The link was closed for what one of these is: it is found by sending one at a time."""
        if len(back) == 1:
            destination.waiting.remove(back[0])
            return self._bad(back[0], destination, condition, text, now)
        destination.is_careful = True
        destination.window = 1
        return self._serve(destination, now)

    def _bad(
        self,
        parcel: Parcel,
        destination: Destination,
        condition: str | None,
        text: str,
        now: float,
    ) -> list[Action]:
        reason = TOO_LARGE_REASON if condition == TOO_LARGE else REFUSED
        text = f"{destination.path}: {text}"
        actions = self._settlements.dead_letter(parcel, reason, text, now)
        return actions + self._serve(destination, now)

    # Accounts

    def _grant(self, now: float) -> list[Action]:
        """Change the source's credit where that is worth a frame."""
        intake, receives = self._intake, self._receives(now)
        wanted = intake.wanted() if receives else 0
        if intake.is_worth_a_frame(wanted) if receives else intake.credit:
            intake.credit = wanted
            return [Grant(wanted)]
        return []

    def _receives(self, now: float) -> bool:
        """Whether anything could be delivered: while nothing can, nothing is received (SPEC 6)."""
        if not (self._primary and self._settlements.is_open) or self._paused:
            return False
        if not self._held:
            return True
        destinations = self._destinations
        if any(destination.goes_on(now) for destination in destinations.values()):
            return True
        return all(destinations[key].gave_up(self._grace_s, now) for key in self._held)

    def _fetch_all(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for destination in self._destinations.values():
            actions += self._fetch(destination, now)
        return actions

    def _fetch(self, destination: Destination, now: float) -> list[Action]:
        """Receive deferred messages of a destination that takes them again, as room allows."""
        if not destination.deferred or destination.held_until is not None:
            return []
        if not (self._primary and self._settlements.is_open) or self._paused:
            return []
        room = self._intake.fetch_room()
        if destination.window == 1 and not destination.gave_up(self._grace_s, now):
            # One will do to find out.
            is_tried = destination.waiting or destination.sent or self._intake.fetching
            room = min(room, 0 if is_tried else 1)
        numbers = self._aside.take(destination, room)
        self._intake.fetching += len(numbers)
        return [Fetch(numbers)] if numbers else []

    def _may_look(self) -> bool:
        is_quiet = not self._intake and not self._intake.fetching
        return is_quiet and self._primary and self._settlements.is_open and not self._paused

    def _destination(self, path: str) -> Destination:
        destination = self._destinations.get(path.lower())
        if destination is None:
            destination = self._destinations[path.lower()] = Destination(path)
        return destination
