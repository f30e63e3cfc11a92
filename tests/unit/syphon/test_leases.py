"""A lease needs signs of life of the service, and ends before its lock."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from twinbus.amqp.events import Attached
from twinbus.amqp.link import ReceiverLink
from twinbus.client.connection import Environment
from twinbus.client.lock_validity import (
    LEASE_LOCK_S,
    LOCK_ASSUMED_S,
    LOCK_LEAST_S,
    SILENCE_S,
    STANDBY_SHARE,
    STOPPED_MARK,
    LockValidity,
    acting_mark,
    handover_s,
    relied_on_s,
    wait_s,
)
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.client.session_locks import STOP_S
from twinbus.namespace.access import endpoint_of
from twinbus.syphon.lease import Leases, lease_address
from twinbus.testing import run_virtual

QUEUE = "contoso/x-servicebus-transfer/0"
PLACE = endpoint_of("Endpoint=sb://second;SharedAccessKeyName=a;SharedAccessKey=b")


class Records:
    """A ledger that counts."""

    def __init__(self) -> None:
        self.kinds: list[tuple[str, object, object]] = []

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        self.kinds.append((operation, fields["cause"], fields["outcome"]))


class Service:
    """The service at the other end of every connection, and what it answers."""

    def __init__(self) -> None:
        self.answers_attaches = self.answers_echoes = True
        self.answers_requests = True
        self.has_lease_queue = True
        self.refused = ""
        """The operation that it refuses."""
        self.state: bytes | None = None
        self.asked: list[str] = []
        self.detached: list[str] = []
        self.environment = Environment(
            since_boot=now,
            wall_ns=lambda: int(now() * 1e9),
            connect=self._connect,
            lock_duration_s=_described,
        )

    def _connect(self, _: object, on_event: Any, *, requests: Any) -> Any:
        return Line(self, on_event, requests)


def now() -> float:
    return asyncio.get_running_loop().time()


async def _described(*_: object) -> float:
    return LEASE_LOCK_S


class Line:
    """A connection to it."""

    def __init__(self, service: Service, on_event: Any, requests: Any) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.flows = 0
        self.session = self
        self._service, self._on_event, self._requests = service, on_event, requests

    async def open(self) -> None:
        if not self._service.answers_requests:
            raise ConnectionLost("no answer")

    async def authorize(self, path: str) -> None:
        if not self._service.has_lease_queue:
            raise RequestRefused(f"The messaging entity '{path}' could not be found", 404, "")

    def attach_receiver(self, name: str, *, source: Any, target: Any) -> ReceiverLink:
        link = ReceiverLink(self, name, 0)  # type: ignore[arg-type]
        link.source = source
        if self._service.answers_attaches:
            asyncio.get_running_loop().call_soon(self._on_event, Attached(link))
        return link

    def echo(self) -> None:
        self.flows += self._service.answers_echoes

    async def request(
        self, path: str, operation: str, body: dict[str, Any], **_: object
    ) -> dict[str, Any]:
        if not self._service.answers_requests:
            await asyncio.sleep(15.0)
            raise ConnectionLost("no answer")
        if operation == self._service.refused:
            raise RequestRefused("no room", 0, "")
        self._service.asked.append(operation)
        self._requests.made(path, operation)
        if operation == "set-session-state":
            self._service.state = body["session-state"]
        return {"session-state": self._service.state}

    def flush(self) -> None:
        """Everything is on the wire at once."""

    def write(self, *_: object) -> None:
        """Everything is written at once."""

    def forget(self, link: ReceiverLink) -> None:
        self._service.detached.append(link.name.rpartition("-")[0])

    async def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def service() -> Service:
    return Service()


def leases_of(service: Service, ledger: Records) -> Leases:
    return Leases(PLACE, [QUEUE], lambda *_: None, ledger, service.environment)


def test_a_held_lease_costs_its_renewals_and_nothing_for_its_signs_of_life(
    service: Service,
) -> None:
    ledger = Records()

    async def hold() -> None:
        leases = leases_of(service, ledger)
        leases.start()
        await asyncio.sleep(3_590.0)
        assert leases.holds(QUEUE)
        await leases.close()

    run_virtual(hold())
    # It is accepted, its mark is read and written; when it is given back, a mark is written again.
    asked, renewed = ("manage", "lease", "ok"), ("renew", "lease", "ok")
    assert ledger.kinds == [*[asked] * 3, *[renewed] * 44, asked]
    assert service.state == STOPPED_MARK


def test_a_service_that_ignores_echoes_is_asked_by_requests_and_the_lease_stays(
    service: Service,
) -> None:
    service.answers_echoes = False

    async def hold() -> None:
        leases = leases_of(service, Records())
        leases.start()
        for _ in range(600):
            await asyncio.sleep(1.0)
            assert leases.holds(QUEUE)
        await leases.close()

    run_virtual(hold())
    assert service.asked.count("renew-session-lock") > 600 / SILENCE_S


def test_a_lease_ends_with_the_silence_of_the_service_long_before_its_lock(
    service: Service,
) -> None:
    async def hold() -> None:
        changes: list[bool] = []
        leases = Leases(
            PLACE,
            [QUEUE],
            lambda _, is_held: changes.append(is_held),
            Records(),
            service.environment,
        )
        leases.start()
        await asyncio.sleep(100.0)
        service.answers_echoes = service.answers_requests = False
        await asyncio.sleep(SILENCE_S)
        assert not leases.holds(QUEUE)
        assert changes == [True, False]
        await leases.close()

    run_virtual(hold())


def test_what_was_suspended_does_not_hold_its_lease_when_it_wakes_up(service: Service) -> None:
    """A process, or the whole machine, whose monotonic clock then stands still on Linux."""
    asleep_s = 0.0
    service.environment = replace(service.environment, since_boot=lambda: now() + asleep_s)

    async def hold() -> None:
        nonlocal asleep_s
        leases = leases_of(service, Records())
        leases.start()
        await asyncio.sleep(100.0)
        assert leases.holds(QUEUE)
        # The clock has moved on, and no timer has run yet.
        asleep_s = SILENCE_S
        assert not leases.holds(QUEUE)
        await leases.close()

    run_virtual(hold())


def test_a_missing_lease_queue_is_named_with_what_to_do(service: Service) -> None:
    """The service refuses the token for a queue that does not exist."""
    service.has_lease_queue = False

    async def hold() -> None:
        leases = leases_of(service, Records())
        leases.start()
        await asyncio.sleep(1.0)
        problem = leases.problem(QUEUE)
        assert problem is not None
        assert problem.startswith("there is no lease queue contoso/x-twinbus-lease in second;")
        service.has_lease_queue = True
        await asyncio.sleep(60.0)
        assert leases.holds(QUEUE)
        await leases.close()

    run_virtual(hold())


def test_a_lease_ends_before_its_lock_counted_from_the_question() -> None:
    lease = LockValidity()
    assert not lease.holds(0.0)
    lease.granted(100.0, 30.0)
    assert lease.holds(123.9)
    assert not lease.holds(124.0)
    assert lease.renew_at == 112.0


def test_a_renewal_prolongs_it_and_one_that_failed_is_tried_again_in_time() -> None:
    lease = LockValidity()
    lease.granted(100.0, 30.0)
    lease.not_renewed(108.0)
    assert 108.0 < lease.renew_at < lease.ends_at
    lease.granted(112.0, 30.0)
    assert lease.ends_at == 136.0
    lease.lost()
    assert not lease.holds(113.0)


@pytest.mark.parametrize(
    ("lock_s", "expected_s"),
    [(300.0, LOCK_ASSUMED_S), (-20.0, LOCK_LEAST_S), (10.0, 10.0)],
    ids=["longer than assumed", "a clock that is ahead", "shorter"],
)
def test_what_the_clocks_make_of_a_lock_is_kept_within_bounds(
    lock_s: float, expected_s: float
) -> None:
    assert relied_on_s(lock_s, None) == expected_s


@pytest.mark.parametrize("by_clock_s", [-3_600.0, 10.0, 240.0, 7_200.0])
def test_a_lock_duration_that_was_read_depends_on_no_clock(by_clock_s: float) -> None:
    assert relied_on_s(by_clock_s, 240.0) == 240.0


def test_after_the_death_of_a_machine_a_standby_takes_over_within_five_minutes() -> None:
    latest_attempt_s = 1.5 * STANDBY_SHARE * LEASE_LOCK_S
    assert LEASE_LOCK_S + latest_attempt_s + handover_s(LEASE_LOCK_S) <= 300.0


OWN = acting_mark("this program")


@pytest.mark.parametrize("described_s", [5.0, 30.0, LEASE_LOCK_S, None])
def test_the_next_holder_waits_until_the_former_one_must_have_stopped(
    described_s: float | None,
) -> None:
    former = LockValidity()
    # One who cannot read the lock duration relies on the clocks, which may be wrong.
    former.granted(0.0, LOCK_ASSUMED_S if described_s is None else described_s)
    expected_s = min(SILENCE_S, former.ends_at)
    for mark in (acting_mark("another"), b"something else", "text"):
        assert wait_s(mark, OWN, described_s) == expected_s


@pytest.mark.parametrize("mark", [None, STOPPED_MARK, OWN], ids=["never", "stopped", "its own"])
def test_nobody_waits_for_a_holder_that_has_stopped(mark: bytes | None) -> None:
    assert wait_s(mark, OWN, LEASE_LOCK_S) == 0.0


def test_a_program_that_cannot_leave_its_mark_does_not_act(service: Service) -> None:
    async def hold() -> None:
        leases = leases_of(service, Records())
        service.refused = "set-session-state"
        leases.start()
        for _ in range(100):
            await asyncio.sleep(1.0)
            assert not leases.holds(QUEUE)
        assert leases.problem(QUEUE) == "no room"
        service.refused = ""
        await asyncio.sleep(5.0)
        assert leases.holds(QUEUE)
        # It is closed all the same, and the next one waits.
        service.refused = "set-session-state"
        await leases.close()

    run_virtual(hold())
    assert str(service.state).startswith("b'held by")


def test_a_close_does_not_wait_for_a_service_that_hangs(service: Service) -> None:
    async def hold() -> None:
        leases = leases_of(service, Records())
        leases.start()
        await asyncio.sleep(100.0)
        assert leases.holds(QUEUE)
        service.answers_requests = False
        began = now()
        await leases.close()
        assert now() - began == STOP_S

    run_virtual(hold())


def test_an_acquisition_that_a_close_cuts_off_is_in_the_ledger(service: Service) -> None:
    ledger = Records()

    async def hold() -> None:
        service.answers_attaches = False
        leases = leases_of(service, ledger)
        leases.start()
        await asyncio.sleep(1.0)
        await leases.close()

    run_virtual(hold())
    # The service bills it, whether it granted the lease or not.
    assert ledger.kinds == [("manage", "lease", "unknown")]


def test_the_next_holder_waits_if_this_one_ends_with_a_message_that_had_no_answer(
    service: Service,
) -> None:
    async def hold() -> None:
        leases = leases_of(service, Records())
        leases.start()
        await asyncio.sleep(100.0)
        await leases.close(unfinished={QUEUE})

    run_virtual(hold())
    assert str(service.state).startswith("b'held by")
    assert service.detached == ["contoso/x-twinbus-lease-0"]


def test_a_close_that_is_given_up_gives_the_leases_back_all_the_same(service: Service) -> None:
    async def hold() -> None:
        leases = leases_of(service, Records())
        leases.start()
        await asyncio.sleep(100.0)
        service.answers_requests = False
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(leases.close(), STOP_S / 2)
        await asyncio.sleep(1.0)
        assert service.detached == ["contoso/x-twinbus-lease-0"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(hold())


def test_a_queue_with_another_name_has_a_lease_of_its_own() -> None:
    assert lease_address("backlog") == ("backlog/x-twinbus-lease", "0")


def test_a_lock_can_be_added_and_given_back_while_others_are_held(service: Service) -> None:
    async def hold() -> None:
        changes: list[tuple[str, bool]] = []
        queues = [QUEUE, QUEUE.replace("/0", "/1")]
        leases = Leases(
            PLACE, queues[:1], lambda *change: changes.append(change), None, service.environment
        )
        leases.start()
        await asyncio.sleep(10.0)
        leases.add(queues[1], lease_address(queues[1]))
        await asyncio.sleep(1.0)
        assert changes == [(queues[0], True), (queues[1], True)]
        leases.remove(queues[0])
        await asyncio.sleep(600.0)
        assert leases.holds(queues[1])
        assert service.detached == ["contoso/x-twinbus-lease-0"]
        leases.add(queues[0], lease_address(queues[0]))
        await asyncio.sleep(1.0)
        assert leases.holds(queues[0])
        await leases.close()

    run_virtual(hold())
