"""What a pump decides about one backlog queue: what is sent, set aside, given up, asked for.

The events that lead here are in `pump`. The small methods under "Where messages wait" are what
strict session order does otherwise.
"""

from __future__ import annotations

from typing import Final

from twinbus.syphon.core.actions import (
    Action,
    Forward,
    GrantCredit,
    LookAhead,
    OpenDestination,
    ReceiveDeferred,
    WaitUntil,
)
from twinbus.syphon.core.backlog_message import BacklogMessage
from twinbus.syphon.core.deferred import DeferredMessages
from twinbus.syphon.core.destination import ANY_NUMBER, TOO_LARGE, Destination
from twinbus.syphon.core.forecast import DrainMeter
from twinbus.syphon.core.intake import Intake, IntakeLimits
from twinbus.syphon.core.look_ahead import LookAheadState
from twinbus.syphon.core.rate import Pace
from twinbus.syphon.core.session_lanes import PeekedEntry
from twinbus.syphon.core.settlements import Settlements

__all__ = ["Decisions"]

MISSING: Final = "DestinationNotFound"
TOO_LARGE_REASON: Final = "MessageTooLarge"
REFUSED: Final = "RefusedByDestination"


class Decisions:
    """The state of one pump, and its decisions."""

    def __init__(
        self,
        *,
        limits: IntakeLimits | None = None,
        undeliverable_grace_s: float = 21_600.0,
        poll_s: float = 900.0,
    ) -> None:
        self.limits = limits or IntakeLimits()
        self.forwarded = self.completed = self.dead_lettered = self.deferred = 0
        self.left_aside = 0
        """Of the deferred, those whose destination is not selected: a later syphon finds them."""
        self.meter = DrainMeter()
        """How fast messages leave the backlog queue."""
        self.pace: Pace | None = None
        """When it may send, where a rate is shared with others; set before the start."""
        self.only: frozenset[str] | None = None
        """The destinations to serve, in lower case; None: all. Set before the start."""
        self._intake = Intake(self.limits)
        self._settlements = Settlements(self._intake)
        self._grace_s = undeliverable_grace_s
        self._poll_s = poll_s
        self._primary = False
        self._heard_at = float("-inf")
        """When the primary last answered anything, for whichever destination."""
        self._paused: set[str] = set()
        """Why nothing is received now; empty: it is."""
        self._destinations: dict[str, Destination] = {}
        self._held: set[str] = set()
        """Destinations that took nothing when last tried, those on trial included."""
        self._poll_at = 0.0
        self._aside = DeferredMessages()
        self._ahead = LookAheadState()
        self._waits_until = float("-inf")

    def __repr__(self) -> str:
        return (
            f"<pump, {len(self._intake)} in flight, credit {self._intake.credit}, "
            f"{list(self._destinations.values())}>"
        )

    # Sending

    def _serve(self, destination: Destination, now: float) -> list[Action]:
        """Send a destination what waits for it, as far as it may; or have it wait elsewhere."""
        actions: list[Action] = []
        if destination.held_until is not None:
            actions += self._set_waiting_aside(destination, now)
            if not destination.is_on_trial:
                return actions
        if self._has_aside(destination):
            actions += self._fetch(destination, now)
        if not self._primary or not destination.waiting:
            return actions
        if not destination.attached:
            if destination.attach_at is None:
                destination.attach_at = now
                actions.append(OpenDestination(destination.path))
            return actions
        sent = destination.sent
        most = ANY_NUMBER if self.pace is None else self._by_pace(self.pace, destination, now)
        while destination.waiting and destination.credit > 0 and len(sent) < destination.window:
            if not most:
                break
            most -= 1
            parcel = destination.next_waiting()
            if too_large := destination.finds_too_large(parcel):
                actions += self._settlements.dead_letter(parcel, TOO_LARGE_REASON, too_large, now)
                continue
            destination.credit -= 1
            parcel.sent_at = now
            sent[parcel.lock_token] = parcel
            actions.append(Forward(parcel))
        return actions + self._wait_for_pace() if self.pace is not None else actions

    def _by_pace(self, pace: Pace, destination: Destination, now: float) -> int:
        """How many messages a destination may be sent now, by the rate."""
        wanted = destination.ready
        pace.is_working = True
        return pace.allowed(destination.path.lower(), wanted, now) if wanted else 0

    def _wait_for_pace(self) -> list[Action]:
        until = None if self.pace is None else self.pace.wake_at
        if until is None or until <= self._waits_until:
            return []
        self._waits_until = until
        return [WaitUntil(until)]

    def _serve_in_line(self, pace: Pace, now: float) -> list[Action]:
        """Serve the destinations whose slice has come."""
        actions: list[Action] = []
        while (key := pace.first_in_line()) is not None and now >= (pace.wake_at or now):
            destination = self._destinations[key]
            if not destination.ready or not self._primary:
                pace.step_out(key)
            actions += self._serve(destination, now)
        return actions

    def _set_waiting_aside(self, destination: Destination, now: float) -> list[Action]:
        """Have what waits for a held destination wait elsewhere, but for one that is tried."""
        if not self._is_waited_for(destination):
            return []
        if not destination.is_selected:
            return self._settlements.defer(self._take_waiting(destination), now)
        if destination.gave_up(self._grace_s, now) and not destination.is_on_trial:
            text = (
                f"{destination.path} does not exist in the primary, and did not for "
                f"{self._grace_s:g} s (undeliverable_grace): {destination.reason}"
            )
            return [
                action
                for parcel in self._take_waiting(destination)
                for action in self._settlements.dead_letter(parcel, MISSING, text, now)
            ]
        if not self._others_go_on(now):
            return self._grant(now)
        is_to_try = destination.is_on_trial and destination.waiting and not destination.sent
        tried = [destination.next_waiting()] if is_to_try else []
        actions = self._settlements.defer(self._take_waiting(destination), now)
        destination.waiting.extend(tried)
        return actions

    def _missing(self, destination: Destination, text: str, now: float) -> list[Action]:
        if destination.missing_since is None:
            destination.missing_since = now
        return self._hold(destination, text, now)

    def _hold(self, destination: Destination, text: str, now: float) -> list[Action]:
        destination.hold(text, now)
        self._held.add(destination.path.lower())
        actions = self._set_waiting_aside(destination, now) + self._grant(now)
        return actions + self._look_ahead(now)

    def _one_is_bad(
        self,
        destination: Destination,
        back: list[BacklogMessage],
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
        parcel: BacklogMessage,
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
        intake, most = self._intake, self._receives(now)
        if self.pace is not None:
            self.pace.is_working = bool(intake)
            intake.narrow(self.pace.share)
        wanted = intake.wanted() if most else 0
        if most < ANY_NUMBER:
            # Few, and exactly so many: an eighth of the window would be worth a frame.
            wanted = min(wanted, most)
            is_worth_it = wanted != intake.credit
        else:
            is_worth_it = intake.is_worth_a_frame(wanted)
        if is_worth_it:
            intake.credit = wanted
            return [GrantCredit(wanted)]
        return []

    def _receives(self, now: float) -> int:
        """How many messages may come: none while nothing can be delivered (SPEC 6)."""
        if not (self._primary and self._settlements.is_open) or self._paused:
            return 0
        if not self._held or self._others_go_on(now):
            return ANY_NUMBER
        held = [self._destinations[key] for key in self._held]
        given_up = [each for each in held if each.gave_up(self._grace_s, now)]
        if len(given_up) == len(held):
            return ANY_NUMBER
        if not all(each.is_on_trial for each in held if each not in given_up):
            return 0
        # One will do to find out.
        return 1 if self._is_quiet else 0

    def _others_go_on(self, now: float) -> bool:
        """Whether messages arrive somewhere, or could if those of held ones were out of the way."""
        if self._ahead.target is not None:
            return True
        return any(destination.goes_on(now) for destination in self._destinations.values())

    def _is_stalled(self, now: float) -> bool:
        """Whether nothing is received only because of held destinations."""
        if not (self._primary and self._settlements.is_open) or self._paused:
            return False
        return bool(self._held) and not self._receives(now)

    def _look_ahead(self, now: float) -> list[Action]:
        """Peek behind what waits in vain, if that is all there is."""
        if not self._is_stalled(now):
            self._ahead.not_needed(now)
            return []
        start = self._ahead.ask(now)
        return [] if start is None else [LookAhead(start)]

    def _fetch_all(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for destination in self._destinations.values():
            actions += self._fetch(destination, now)
        return actions

    def _fetch(self, destination: Destination, now: float) -> list[Action]:
        """Receive deferred messages of a destination that takes them again, as room allows."""
        if not self._has_aside(destination) or destination.is_held:
            return []
        if not (self._primary and self._settlements.is_open) or self._paused:
            return []
        room = self._intake.fetch_room()
        if destination.window == 1 and not destination.gave_up(self._grace_s, now):
            # One will do to find out.
            is_tried = destination.waiting or destination.sent or self._intake.fetching
            room = min(room, 0 if is_tried else 1)
        numbers = self._take_aside(destination, room)
        self._intake.fetching += len(numbers)
        return [ReceiveDeferred(numbers)] if numbers else []

    def _is_worth_finding(self, sighting: PeekedEntry) -> bool:
        """Whether a message that was seen could be delivered, or find out whether others can."""
        if sighting.is_deferred or not self._is_selected(sighting.path):
            return False
        if sighting.path.lower() not in self._held:
            return True
        destination = self._destinations[sighting.path.lower()]
        if not destination.is_on_trial or destination.sent:
            return False
        return not self._is_waited_for(destination) and not self._has_aside(destination)

    def _look_at(self) -> float | None:
        """When to look for deferred messages, as things are; None: that cannot be done."""
        if not (self._primary and self._settlements.is_open) or self._paused:
            return None
        return self._aside.due_at if self._is_quiet else self._aside.latest_at

    @property
    def _is_quiet(self) -> bool:
        """Whether nothing is in hand, nor asked for by number."""
        return not self._intake and not self._intake.fetching

    def _destination(self, path: str) -> Destination:
        destination = self._destinations.get(path.lower())
        if destination is None:
            destination = self._destinations[path.lower()] = Destination(path)
            if not self._is_selected(path):
                destination.leave_out()
        return destination

    def _is_selected(self, path: str) -> bool:
        return self.only is None or path.lower() in self.only

    # Where messages wait

    def _admit(self, parcel: BacklogMessage, destination: Destination) -> None:
        """Have a message that came wait to be sent."""
        destination.waiting.append(parcel)

    def _is_waited_for(self, destination: Destination) -> bool:
        return bool(destination.waiting)

    def _take_waiting(self, destination: Destination) -> list[BacklogMessage]:
        """All that waits to be sent, which then waits no more."""
        return destination.take_waiting()

    def _withdraw(self, parcel: BacklogMessage, destination: Destination) -> bool:
        """Whether a message waited to be sent, which it then does no more."""
        if parcel not in destination.waiting:
            return False
        destination.waiting.remove(parcel)
        return True

    def _lets_go(self, parcel: BacklogMessage, destination: Destination) -> bool:
        """Whether a message waited in vain, which it then does no more."""
        return destination.lets_go(parcel, is_up=self._primary)

    def _has_aside(self, destination: Destination) -> bool:
        """Whether deferred messages of it are known that may be received by number."""
        return bool(destination.deferred)

    def _take_aside(self, destination: Destination, room: int) -> list[int]:
        return self._aside.take(destination, room)

    def _is_aside(self, parcel: BacklogMessage, now: float) -> None:
        """A message is deferred in the backlog queue, and no longer in hand."""
        self._aside.add(self._destination(parcel.path), parcel.sequence_number, now)

    def _found(self, sighting: PeekedEntry, now: float) -> None:
        """A deferred message was found, of whichever process deferred it."""
        self._aside.add(self._destination(sighting.path), sighting.number, now)
