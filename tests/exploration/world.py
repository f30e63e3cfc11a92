"""A small world: two namespaces, applications with a pair, and syphons, whose cores are shipped.

The namespaces keep what they took. Whatever answers, does so when the explorer says so, or never.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from tests.exploration.application import ENTITIES, SESSION, Application
from tests.exploration.explorer import Violation
from tests.exploration.program import LOCK_S, Relay
from twinbus.pairing.core import attempts, backlog, failover, secondary
from twinbus.syphon.core import destination, intake, receive_control, strict_order
from twinbus.transfer.unpacking import BacklogMessage

HORIZON_S: Final = 60.0
"""Time does not pass to a deadline that is further away: nothing waits for it."""

SPENT_MAX: Final = 2
"""Copies are counted until so many faults have happened."""

BOTH: Final = frozenset({"primary", "secondary"})

APPLICATIONS: Final = ("application", "application 2")


@dataclass(frozen=True)
class Settings:
    """What a world has, and how many faults of each kind may happen."""

    senders: int = 1
    """Applications, each with an entity of its own."""
    messages: int = 1
    """Of each sender."""
    stored: int = 0
    """How many of them are in a backlog queue from the start."""
    queues: int = 2
    strict: bool = False
    stops: tuple[str, ...] = ("primary",)
    """The namespaces that may stop, each once."""
    crashes: int = 1
    answers: int = 1
    cuts: int = 1
    refusals: int = 0


@dataclass(eq=False)
class Stored:
    """One message of a backlog queue."""

    number: int
    serial: int
    session: str | None
    state: str = "active"
    token: bytes = b""
    was_deferred: bool = False
    is_renewed: bool = False
    """It was locked over a connection that is still there."""

    @property
    def is_deferred(self) -> bool:
        return self.state == "deferred" or (self.state == "locked" and self.was_deferred)


@dataclass(eq=False)
class BacklogQueue:
    stored: list[Stored] = field(default_factory=list)
    last: int = 0


class World:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.relays: dict[str, Relay] = {}
        """First, because their memories give the lock tokens their order."""
        self.now = 1_000.0
        self.up = {*BOTH}
        self.cut: tuple[str, str] | None = None
        """A process and the namespace that it does not reach."""
        self.left = {
            "answer": settings.answers,
            "refusal": settings.refusals,
            "crash": settings.crashes,
            "cut": settings.cuts,
        }
        self.may_stop = list(settings.stops)
        self.may_raise = settings.refusals > 0
        """The secondary was out of reach for the application, or something was refused."""
        self.primary: list[int] = []
        """What the primary took, in order."""
        self.queue_names = [f"backlog/{number}" for number in range(settings.queues)]
        self.queues = {name: BacklogQueue() for name in self.queue_names}
        self.late: list[tuple[int, str, float]] = []
        """Messages whose sender has given them up: which, where and until when they may arrive."""
        self.acked: list[int] = []
        self.tokens = 0
        self.applications = {
            name: Application(self, name, place)
            for place, name in enumerate(APPLICATIONS[: settings.senders])
        }
        self.relays = {name: Relay(self, "syphon", name) for name in self.queue_names}
        for relay in self.relays.values():
            relay.connect("primary")
            relay.connect("secondary")
            relay.tick()
            relay.pickle_memory()
        for serial in range(1, settings.stored + 1):
            self.store(self.queue_names[0], serial)
            self.acked.append(serial)
        self.applications[APPLICATIONS[0]].next_message += settings.stored

    # What the parts ask

    def is_reachable(self, process: str, side: str) -> bool:
        return side in self.up and self.cut != (process, side)

    @staticmethod
    def side_of(place: str) -> str:
        return "primary" if place == "primary" else "secondary"

    def entity_of(self, serial: int) -> str:
        return ENTITIES[(serial - 1) // self.settings.messages]

    def new_token(self) -> bytes:
        self.tokens += 1
        return self.tokens.to_bytes(8, "big")

    def store(self, place: str, serial: int, *, is_over: bool = False) -> None:
        """A namespace takes a message. `is_over`: it did so before its sender gave it up."""
        if place == "primary":
            self.take(serial)
            return
        queue = self.queues[place]
        queue.last += 1
        session = SESSION if self.settings.strict else None
        queue.stored.append(Stored(queue.last, serial, session))

    def take(self, serial: int) -> None:
        self.primary.append(serial)

    def note_raised(self, serial: int) -> None:
        """The call of a message raised; while the secondary can be reached no call does."""
        if not self.may_raise:
            raise Violation(f"raised: the send of {serial}, although the secondary works")

    def check_turn(self, relay: Relay, message: BacklogMessage) -> None:
        """Under strict order nothing of a session is sent before what was stored before it."""
        if message.session is None:
            return
        for stored in self.queues[relay.queue].stored:
            if stored.number >= message.sequence_number:
                return
            if stored.serial not in self.primary:
                raise Violation(f"order: {message.message_id} overtakes {stored.serial}")

    def ordered_queues(self) -> list[str]:
        """The backlog queues in an order that does not depend on their names."""
        applications = self.applications.values()

        def signature(name: str) -> Any:
            relay, queue = self.relays[name], self.queues[name]
            return (
                [name != each.choice.kept for each in applications],
                [not each.rotation.is_in(name, self.now) for each in applications],
                [(s.serial, s.state, s.was_deferred) for s in queue.stored],
                queue.last,
                sorted(relay.connected),
                sorted(relay.lost),
                sorted(relay.attaching),
                sorted(relay.attached),
                relay.credit,
                relay.sending,
                relay.to_settle,
                relay.in_flight,
            )

        if self.settings.strict:
            return self.queue_names
        return sorted(self.queue_names, key=signature)

    # Actions

    def actions(self) -> list[tuple[Any, ...]]:
        syphon = [
            (_marked(action), "syphon", name, *action)
            for name, relay in self.relays.items()
            for action in relay.actions()
        ]
        if not self.settings.strict and any(not fault for fault, *_ in syphon):
            # What the syphon does and what the application does have nothing to do with each other
            # here: in any order they lead to the same state. So faults of the application come
            # once the syphon waits, and those of the syphon at any time.
            return syphon + self._faults(("syphon",))
        found: list[tuple[Any, ...]] = [
            (_marked(action), name, *action)
            for name, application in self.applications.items()
            for action in application.actions()
        ]
        found += syphon
        found += [("", "arrive", at) for at in range(len(self.late)) if self._is_up(at)]
        # All relays of a program at once: their connections have nothing to do with each other.
        for side in sorted(BOTH):
            relays = self.relays.values()
            if self.is_reachable("syphon", side) and any(side not in r.connected for r in relays):
                found.append(("", "connect", side))
            if any(relay.is_cut_off(side) for relay in relays):
                found.append(("", "disconnect", side))
        found += [("", "unlock", *which) for which in self._unlockable()]
        found += [("", "start", side) for side in sorted(BOTH - self.up)]
        if self.cut is not None:
            found.append(("", "mend"))
        if self._time_may_pass():
            found.append(("", "pass_time"))
        return found + self._faults((*self.applications, "syphon"))

    def _faults(self, processes: tuple[str, ...]) -> list[tuple[Any, ...]]:
        # Nothing can happen to what is over.
        processes = tuple(name for name in processes if not self._is_over(name))
        found: list[tuple[Any, ...]] = [
            ("FAULT", "stop", side) for side in self.may_stop if side in self.up and processes
        ]
        if self.left["crash"]:
            found += [("FAULT", "crash", name) for name in processes]
        if self.left["cut"] and self.cut is None:
            found += [("FAULT", "part", name, side) for name in processes for side in sorted(BOTH)]
        return found

    def _is_up(self, at: int) -> bool:
        return self.side_of(self.late[at][1]) in self.up

    def _unlockable(self) -> list[tuple[str, int]]:
        """Locks that may end: nobody renews them."""
        found: list[tuple[str, int]] = []
        for name, queue in self.queues.items():
            is_away = not self.is_reachable("syphon", "secondary")
            found += [
                (name, stored.number)
                for stored in queue.stored
                if stored.state == "locked" and (is_away or not stored.is_renewed)
            ]
        return found

    def _deadlines(self) -> list[float]:
        found = [at for each in self.applications.values() for at in each.deadlines()]
        for relay in self.relays.values():
            found += relay.deadlines()
        found += [until for *_, until in self.late]
        return found

    def _next_deadline(self) -> float | None:
        ahead = [at for at in self._deadlines() if at > self.now]
        return min(ahead, default=None)

    def _time_may_pass(self) -> bool:
        if self.is_home or any(at <= self.now for at in self._due()):
            return False
        if any(relay.expects_answers for relay in self.relays.values()):
            return False
        at = self._next_deadline()
        return at is not None and at <= self.now + HORIZON_S

    def _due(self) -> list[float]:
        """Deadlines that hold time up until their action was taken."""
        found: list[float | None] = []
        for application in self.applications.values():
            found.append(application.failover.timer_at)
            if application.attempt is not None:
                found.append(application.attempt.until)
            if application.waits_for is not None:
                found.append(application._wake_at())
            if application.ping is not None:
                found.append(application.ping.began + secondary.LONGEST_PACE_S)
        relays = self.relays.values()
        found += [relay.timer_at for relay in relays if relay.ticked_at < self.now]
        return [each for each in found if each is not None]

    def perform(self, action: tuple[Any, ...]) -> None:
        match action[1:]:
            case ("syphon", queue, name, *given):
                getattr(self.relays[queue], _method(name))(*given)
            case (process, name, *given) if process in self.applications:
                self._of_application(process, name, *given)
            case (name, *given):
                getattr(self, f"_{name}")(*given)
        for relay in self.relays.values():
            relay.pickle_memory()
        self._forget_what_is_over()

    def _is_over(self, process: str) -> bool:
        """Whether a process can do nothing any more."""
        if process in self.applications:
            return self.applications[process].is_done
        return all(relay.is_over for relay in self.relays.values())

    def _forget_what_is_over(self) -> None:
        """Have what cannot matter any more as it was at the start: it would multiply the states."""
        if self._spent() >= SPENT_MAX:
            self.primary = list(dict.fromkeys(self.primary))
        if self.settings.strict:
            return
        for application in self.applications.values():
            if application.has_sent:
                application.rest()
        if not all(each.has_sent for each in self.applications.values()):
            return
        self.may_raise = True
        for name, relay in self.relays.items():
            is_awaited = any(place == name for _, place, _ in self.late)
            if relay.is_idle and not is_awaited and not self.queues[name].stored:
                relay.end()
        if self.cut is not None and self._is_over(self.cut[0]):
            self.cut = None

    def _of_application(self, process: str, name: str, *given: Any) -> None:
        renamed = {"wake": "wake_call", "scan": "begin_scan"}
        getattr(self.applications[process], renamed.get(name, _method(name)))(*given)

    # Steps of the world

    def _pass_time(self) -> None:
        at = self._next_deadline()
        assert at is not None
        self.now = at
        self.late = [each for each in self.late if each[2] > at]

    def _connect(self, side: str) -> None:
        for relay in self.relays.values():
            if side not in relay.connected:
                relay.connect(side)

    def _disconnect(self, side: str) -> None:
        for relay in self.relays.values():
            if relay.is_cut_off(side):
                relay.disconnect(side)

    def _arrive(self, at: int) -> None:
        serial, place, _ = self.late.pop(at)
        self.store(place, serial)

    def _unlock(self, queue: str, number: int) -> None:
        relay = self.relays[queue]
        stored = next(s for s in self.queues[queue].stored if s.number == number)
        if stored.is_renewed:
            # The secondary has given up the connection that it does not hear from.
            relay.lost.add("secondary")
        stored.state, stored.token = "deferred" if stored.was_deferred else "active", b""

    def _start(self, side: str) -> None:
        self.up.add(side)

    def _mend(self) -> None:
        self.cut = None

    def _stop(self, side: str) -> None:
        self.may_stop.remove(side)
        self.up.discard(side)
        for application in self.applications.values():
            application.lost_side(side)
        for relay in self.relays.values():
            if side in relay.connected and not relay.is_over:
                relay.disconnect(side)
        if side == "secondary":
            self.may_raise = True
            for name, number in self._unlockable():
                self._unlock(name, number)

    def _part(self, process: str, side: str) -> None:
        self.left["cut"] -= 1
        self.cut = (process, side)
        if process in self.applications and side == "secondary":
            self.may_raise = True

    def _crash(self, process: str) -> None:
        self.left["crash"] -= 1
        if process in self.applications:
            self.applications[process].crash()
        else:
            for relay in self.relays.values():
                if not relay.is_over:
                    relay.crash()

    # What must hold

    @property
    def is_home(self) -> bool:
        """Both namespaces are up, and nothing is left to be done."""
        is_quiet = (
            all(each.is_quiet for each in self.applications.values())
            and not any(queue.stored for queue in self.queues.values())
            and not any(relay.in_flight for relay in self.relays.values())
            and all(len(relay.connected) == len(BOTH) for relay in self.relays.values())
        )
        return is_quiet and self.up == BOTH and self.cut is None

    def check(self) -> None:
        held = {stored.serial for queue in self.queues.values() for stored in queue.stored}
        lost = [
            serial for serial in self.acked if serial not in held and serial not in self.primary
        ]
        if lost:
            raise Violation(f"lost: {lost} of the acknowledged {self.acked}")
        spent = self._spent()
        for serial, copies in Counter(self.primary).items():
            # One fault can cost one copy. After two, several deliveries of one message may be in
            # flight at once, and each of them may arrive.
            if copies > 1 + spent and spent < SPENT_MAX:
                raise Violation(f"forwards: {copies} copies of {serial} after {spent} faults")
        if self.settings.strict:
            self._check_order()
        for application in self.applications.values():
            if application.call is not None and self.now > application.must_end_at:
                raise Violation("outlived: a call did not end within its bound")

    def _spent(self) -> int:
        settings = self.settings
        every = settings.answers + settings.crashes + settings.cuts + len(settings.stops)
        left = self.left["answer"] + self.left["crash"] + self.left["cut"] + len(self.may_stop)
        return every - left

    def _check_order(self) -> None:
        first = list(dict.fromkeys(serial for serial in self.primary if serial in self.acked))
        if first != sorted(first):
            raise Violation(f"order: the primary took {self.primary}")
        for serial in self.acked:
            later = [other for other in first if other > serial]
            if later and serial not in first:
                raise Violation(f"order: {later[0]} is in the primary before {serial}")


def _marked(action: tuple[Any, ...]) -> str:
    return "FAULT" if any(str(part).startswith("FAULT_") for part in action) else ""


def _method(name: str) -> str:
    return name.removeprefix("FAULT_")


def coarse_times() -> list[tuple[Any, str, float]]:
    """Waits of the core as multiples of five seconds: fewer combinations, the same decisions."""
    return [
        (secondary, "FIRST_PACE_S", 5.0),
        (secondary, "TURN_GRACE_S", 5.0),
        (destination, "FIRST_BACKOFF_S", 5.0),
        (destination, "LONGEST_BACKOFF_S", 10.0),
        (destination, "ATTACHED_SOON_S", 5.0),
        (destination, "SEARCH_AFTER_S", 0.0),
        (receive_control, "NOT_NEEDED_S", 0.0),
        (strict_order, "CHECK_S", 5.0),
        (attempts, "FIRST_PACE_S", 5.0),
        (attempts, "RETRIES_MIN", 1),
        (backlog, "FIRST_PULL_S", 10.0),
        (backlog, "LONGEST_PULL_S", 10.0),
        (backlog, "PROBES_IN_A_PULL", 2),
        (destination, "FORCED_SEARCH_S", 10.0),
        (intake, "LOCK_SHORTEST_S", LOCK_S),
        (failover, "EARLY_PING_SHARE", 1.0),
    ]
