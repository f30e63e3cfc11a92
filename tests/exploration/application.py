"""An application of an explored world: one pair, one entity of its own, one sender.

Every decision is the shipped core's. What is here performs the steps of a call and the actions of
a failover in the order in which the shells do (pairing/sending).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.exploration.attempts import (
    Attempt,
    OperationTimeoutError,
    Ping,
    ServiceBusServerBusyError,
)
from tests.exploration.explorer import QUESTIONS, Violation
from twinbus.pairing.core.attempts import (
    DivertTo,
    PullQueue,
    Raise,
    RetryPolicy,
    SendDecisions,
    Step,
    TryPrimary,
    WaitForRetry,
    WaitForSecondary,
    call_limit_s,
)
from twinbus.pairing.core.backlog import KeptChoice, Rotation
from twinbus.pairing.core.failover import (
    EntityFailover,
    Event,
    PingAnswered,
    PingFailed,
    PrimaryTried,
    SendFailed,
    SendPing,
    SendSucceeded,
    StopPinging,
    TimerFired,
    Transition,
)
from twinbus.pairing.core.secondary import DivertFault
from twinbus.pairing.core.session_order import (
    DOUBT_S,
    Diversion,
    QueueScan,
    SessionKey,
    SessionOrder,
)
from twinbus.pairing.sending.sessions import CallSessions
from twinbus.servicebus.failures import is_answer, is_timeout, of_error, outcome_of
from twinbus.status.document import EntityState

if TYPE_CHECKING:
    from tests.exploration.world import World

ENTITIES = ("orders", "bills")
"""One for each application."""

ENTITY = ENTITIES[0]
SESSION = "a"
FAILOVER_S = 10.0
PING_S = 5.0
ATTEMPT_S = 5.0
PASS_ON_S = 5.0
"""A call that was woken for its turn and did not take it waits this long (pairing: 0.1 s)."""

POLICY = RetryPolicy(
    total=None,
    backoff_factor_s=5.0,
    backoff_max_s=5.0,
    attempt_timeout_s=ATTEMPT_S,
    failover_interval_s=FAILOVER_S,
)


def pick(queues: Any) -> str:
    chosen: str = queues[QUESTIONS.ask(len(queues))]
    return chosen


def no_chance() -> float:
    return 0.0


class Application:
    def __init__(self, world: World, name: str, place: int) -> None:
        self.world = world
        self.name = name
        self.path = ENTITIES[place]
        self.next_message = place * world.settings.messages + 1
        self.last_message = (place + 1) * world.settings.messages
        self.start()

    def start(self) -> None:
        """Begin with nothing known, as a process does."""
        world = self.world
        self.failover = EntityFailover(failover_interval_s=FAILOVER_S, ping_interval_s=PING_S)
        self.rotation = Rotation(world.queue_names)
        self.choice = KeptChoice(self.rotation, pick)
        self.order = SessionOrder(world.queue_names) if world.settings.strict else None
        self.scan: QueueScan | None = None
        self.first_scans: list[str] = []
        self.call: SendDecisions | None = None
        self.sessions: CallSessions | None = None
        self.attempt: Attempt | None = None
        self.waits_for: WaitForRetry | WaitForSecondary | None = None
        self.passed_on_at = float("-inf")
        self.must_end_at = 0.0
        """By when the present call must have ended, as options promise."""
        self.ping: Ping | None = None
        self.failing_since: float | None = None
        """The first counting failure since the last success, as the world sees it."""

    # What a call under strict order asks of the pair's session scan

    @property
    def now(self) -> float:
        return self.world.now

    def wake(self) -> None:
        """The scan is an action of the world, at any time."""

    # Actions

    def actions(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        if self.call is None and self.next_message <= self.last_message:
            found.append(("begin",))
        if self.attempt is not None:
            found += self._attempt_actions(self.attempt)
        if self.waits_for is not None and self._wake_at() <= self.now:
            found.append(("wake",))
        if self.failover.timer_at is not None and self.failover.timer_at <= self.now:
            found.append(("timer",))
        if self.ping is not None:
            found += self._ping_actions(self.ping)
        probe = self.rotation.next_probe(self.now)
        if probe is not None and probe[1] <= self.now:
            found.append(("probe", probe[0]))
        return found + self._scan_actions()

    def _attempt_actions(self, attempt: Attempt) -> list[tuple[Any, ...]]:
        side = self.world.side_of(attempt.place)
        is_over = self.now >= attempt.until
        if attempt.is_broken:
            return [("fail",)]
        if attempt.is_lost:
            return [("fail",), *([("time_out",)] if is_over else [])]
        if self.world.is_reachable(self.name, side):
            found: list[tuple[Any, ...]] = [("answer",)]
            if self.world.left["answer"]:
                found.append(("FAULT_lose_answer",))
            if self.world.left["refusal"]:
                found.append(("FAULT_refuse",))
            return found
        if side not in self.world.up:
            return [("fail",)]
        return [("time_out",)] if is_over else []

    def _ping_actions(self, ping: Ping) -> list[tuple[Any, ...]]:
        is_over = self.now >= ping.began + ATTEMPT_S
        if not ping.is_lost and self.world.is_reachable(self.name, "primary"):
            lose = [("FAULT_lose_ping",)] if self.world.left["answer"] else []
            return [("answer_ping",), *lose]
        if "primary" not in self.world.up:
            return [("fail_ping",)]
        return [("fail_ping",)] if is_over else []

    def _scan_actions(self) -> list[tuple[Any, ...]]:
        if self.order is None or not self.world.is_reachable(self.name, "secondary"):
            return []
        if self.scan is not None:
            return [("end_scan",)]
        queues = [*self.first_scans]
        if not queues:
            queues = self.order.queues_to_scan(self._is_back, self.now)
        return [("scan", queue) for queue in queues]

    def _is_back(self, path: str) -> bool:
        return self.failover.state in (EntityState.HEALTHY, EntityState.SUSPECT)

    def deadlines(self) -> list[float]:
        found = [self.failover.timer_at]
        if self.attempt is not None and not self.attempt.is_broken:
            found.append(self.attempt.until)
        if self.waits_for is not None:
            found.append(self._wake_at())
        if self.ping is not None:
            found.append(self.ping.began + ATTEMPT_S)
        probe = self.rotation.next_probe(self.now)
        found.append(None if probe is None else probe[1])
        if self.order is not None:
            found += [bound.scan_from for bound in self.order._bound.values()]
        return [each for each in found if each is not None]

    def _wake_at(self) -> float:
        step = self.waits_for
        assert step is not None
        if isinstance(step, WaitForRetry):
            return step.until
        return min(step.until, max(self.rotation.secondary.turn_at, self.passed_on_at))

    # A call

    def begin(self) -> None:
        backlog: Any = self.choice
        view: Any = self.failover
        self.must_end_at = self.now + call_limit_s(POLICY)
        self.sessions = None
        if self.order is not None:
            scan: Any = self
            entity: Any = self
            self.sessions = CallSessions(scan, entity, [SESSION], self.choice)
            backlog = view = self.sessions
        self.call = SendDecisions(
            view,
            backlog,
            POLICY,
            ends_at=self.now + call_limit_s(POLICY),
            is_patient=False,
            jitter=no_chance,
            tries_for_others=True,
        )
        self._perform(self.call.start(self.now))

    def _perform(self, steps: list[Step]) -> None:
        self.attempt = self.waits_for = None
        for pull in steps[:-1]:
            assert isinstance(pull, PullQueue)
            if self.rotation.is_in(pull.queue, self.now):
                self.rotation.pull(pull.queue, pull.reason, self.now, cause=pull.cause)
        match steps[-1]:
            case TryPrimary(timeout_s, is_trial):
                if is_trial:
                    self.tell(PrimaryTried())
                self.attempt = self._begin_attempt("primary", timeout_s)
            case DivertTo() as step:
                self._check_divert(step.queue)
                if step.is_turn:
                    self.rotation.secondary.begin_turn(self.now, step.timeout_s)
                if self.sessions is not None:
                    self.sessions.begin_divert()
                self.attempt = self._begin_attempt(step.queue, step.timeout_s)
                self.attempt.is_turn = step.is_turn
            case WaitForRetry() | WaitForSecondary() as step:
                self.waits_for = step
            case Raise():
                self.world.note_raised(self.next_message)
                self._end_call()
            case step:
                raise AssertionError(f"{step} is not the last of its steps")

    def _check_divert(self, queue: str) -> None:
        is_bound = self.order is not None and self.sessions is not None
        if self.failover.state is not EntityState.FAILED_OVER and not is_bound:
            raise Violation(f"route: diverted to {queue} while the entity is healthy")

    def _begin_attempt(self, place: str, timeout_s: float) -> Attempt:
        could_arrive = self.world.is_reachable(self.name, self.world.side_of(place))
        return Attempt(place, self.now, timeout_s, could_arrive)

    def _end_call(self) -> None:
        self.call = self.sessions = self.attempt = self.waits_for = None
        self.must_end_at = 0.0
        self.next_message += 1

    def wake_call(self) -> None:
        assert self.call is not None
        if isinstance(self.waits_for, WaitForSecondary):
            self.passed_on_at = self.now + PASS_ON_S
        self._perform(self.call.wait_ended(self.now))

    def answer(self) -> None:
        """The place has stored the message and says so."""
        attempt, call = self.attempt, self.call
        assert attempt is not None
        assert call is not None
        self.world.store(attempt.place, self.next_message)
        self.world.acked.append(self.next_message)
        self._end_attempt(attempt, Diversion.STORED)
        if attempt.place == "primary":
            self.failing_since = None
            self._end_call()
            if self.failover.state is not EntityState.HEALTHY:
                self.tell(SendSucceeded())
            return
        self.rotation.succeeded(attempt.place)
        self.rotation.secondary.stored(attempt.place, self.now)
        self.choice.answered(attempt.place)
        self._end_turn(attempt)
        self._end_call()

    def lose_answer(self) -> None:
        """Nothing answers the attempt; the message is stored now, or later, or never."""
        attempt = self.attempt
        assert attempt is not None
        self.world.left["answer"] -= 1
        attempt.is_lost, attempt.could_arrive = True, False
        match QUESTIONS.ask(3):
            case 0:
                self.world.store(attempt.place, self.next_message)
            case 1:
                self.world.late.append((self.next_message, attempt.place, attempt.until + DOUBT_S))

    def refuse(self) -> None:
        self.world.left["refusal"] -= 1
        self._failed(ServiceBusServerBusyError("busy"))

    def fail(self) -> None:
        """The connection was refused, or has ended."""
        attempt = self.attempt
        assert attempt is not None
        is_refused = not (attempt.is_broken or attempt.is_lost)
        self._may_be_stored(attempt)
        self._failed(ConnectionRefusedError() if is_refused else ConnectionResetError())

    def time_out(self) -> None:
        assert self.attempt is not None
        self._may_be_stored(self.attempt)
        self._failed(OperationTimeoutError("no answer"))

    def _may_be_stored(self, attempt: Attempt) -> None:
        if attempt.could_arrive and QUESTIONS.ask(2):
            self.world.store(attempt.place, self.next_message, is_over=True)

    def _failed(self, error: Exception) -> None:
        attempt, call = self.attempt, self.call
        assert attempt is not None
        assert call is not None
        if attempt.place != "primary":
            self._divert_failed(attempt, call, error)
            return
        meaning = of_error(error)
        if meaning.counts and self.failing_since is None:
            self.failing_since = self.now
        self.tell(SendFailed(counts=meaning.counts, error=str(error), kind="timeout"))
        self._perform(call.primary_failed(error, meaning, self.now, counts=meaning.counts))

    def _divert_failed(self, attempt: Attempt, call: SendDecisions, error: Exception) -> None:
        """As pairing/sending: shared_state.divert_failed, then send_calls._divert_in_order."""
        queue, secondary = attempt.place, self.rotation.secondary
        fault = DivertFault.QUEUE
        if is_answer(error):
            secondary.answered(queue, self.now)
        elif of_error(error).counts:
            timed_out = is_timeout(error)
            if timed_out and attempt.timeout_s < ATTEMPT_S:
                fault = DivertFault.CALLER
                self.choice.cut_short(queue, self.now)
            else:
                fault = secondary.no_answer(
                    queue, "silent", began=attempt.began, now=self.now, timed_out=timed_out
                )
        steps = call.divert_failed(error, of_error(error), fault, self.now)
        refused = outcome_of(error) == "failed"
        self._end_attempt(attempt, Diversion.REFUSED if refused else Diversion.DOUBTFUL)
        self._end_turn(attempt)
        self._perform(steps)

    def _end_attempt(self, attempt: Attempt, ended: Diversion) -> None:
        if self.sessions is not None and attempt.place != "primary":
            self.sessions.end_divert(ended)

    def _end_turn(self, attempt: Attempt) -> None:
        if attempt.is_turn:
            self.rotation.secondary.end_turn(self.now, 0.0)

    # The entity

    def tell(self, event: Event) -> None:
        """As pairing/sending/entity_monitor: perform the actions, and wake the call that waits."""
        actions = self.failover.handle(event, self.now)
        for action in actions:
            match action:
                case SendPing():
                    assert self.ping is None
                    self.ping = Ping(self.now)
                case StopPinging():
                    self.ping = None
                case Transition():
                    self._check_transition(action, event)
        if actions and self.waits_for is not None and self.call is not None:
            self._perform(self.call.wait_ended(self.now))

    def _check_transition(self, action: Transition, event: Event) -> None:
        if action.after is EntityState.HEALTHY:
            self.failing_since = None
        if action.before is EntityState.SUSPECT and action.after is EntityState.FAILED_OVER:
            since = self.failing_since
            if since is None:
                raise Violation("failover: without an own failure since the last success")
            if isinstance(event, TimerFired) and self.now < since + FAILOVER_S:
                raise Violation("failover: before the failover interval was over")

    def timer(self) -> None:
        self.tell(TimerFired())

    def answer_ping(self) -> None:
        self.ping = None
        self.tell(PingAnswered())
        if self.failover.state is not EntityState.HEALTHY:
            raise Violation("ping: it was answered, and the entity is not healthy")

    def lose_ping(self) -> None:
        assert self.ping is not None
        self.world.left["answer"] -= 1
        self.ping.is_lost = True

    def fail_ping(self) -> None:
        self.ping = None
        self.tell(PingFailed(error="no answer"))

    # The secondary

    def probe(self, queue: str) -> None:
        """Attach a link to a pulled queue, as discovery does."""
        if self.world.is_reachable(self.name, "secondary"):
            self.rotation.secondary.answered(queue, self.now)
            self.rotation.attached(queue, self.now)
        else:
            self.rotation.probe_ended(queue, self.now, 0.0)

    def begin_scan(self, queue: str) -> None:
        assert self.order is not None
        if queue in self.first_scans:
            self.first_scans.remove(queue)
            self.scan = self.order.begin_first_scan(queue, self.now)
        else:
            self.scan = QueueScan(queue, self.now)

    def end_scan(self) -> None:
        assert self.order is not None
        assert self.scan is not None
        scan, self.scan = self.scan, None
        stored = self.world.queues[scan.queue].stored
        self.order.add_page(scan, [(ENTITY, each.session) for each in stored])
        self.order.finish_scan(scan)

    @property
    def is_bound(self) -> bool:
        return self.order is not None and self.order.is_bound(SessionKey.of(ENTITY, SESSION))

    @property
    def is_quiet(self) -> bool:
        is_healthy = self.failover.state is EntityState.HEALTHY
        return self.call is None and is_healthy and not self.is_bound

    @property
    def is_done(self) -> bool:
        return self.is_quiet and self.next_message > self.last_message

    @property
    def has_sent(self) -> bool:
        return self.call is None and self.next_message > self.last_message

    def rest(self) -> None:
        """Everything is sent: have what only a call needs as it was at the start."""
        failover, ping, since = self.failover, self.ping, self.failing_since
        self.start()
        if failover.state is not EntityState.HEALTHY:
            self.failover, self.ping = failover, ping
            self.failing_since = since if failover.state is EntityState.SUSPECT else None

    # Faults

    def lost_side(self, side: str) -> None:
        """A namespace stopped: its connections end."""
        if self.attempt is not None and self.world.side_of(self.attempt.place) == side:
            self.attempt.is_broken = True
        if self.scan is not None and side == "secondary" and self.order is not None:
            self.order.abandon_scan(self.scan)
            self.scan = None

    def crash(self) -> None:
        """Killed and started: what was in flight may have been stored."""
        if self.attempt is not None:
            self._may_be_stored(self.attempt)
        if self.call is not None:
            self.next_message += 1
        self.start()
        if self.order is not None:
            self.first_scans = [*self.world.queue_names]
