"""Backlog queues found by attaching or by listing; a pair with a closed or faulted side."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from tests.unit.pairing.lifecycle.test_discovery import HOUR_S, FakeAdministration, world
from twinbus.errors import PairClosedError, PairFaultedError
from twinbus.namespace.namespace import Namespace
from twinbus.pair import pair_namespaces
from twinbus.pairing.core.backlog import PullCause
from twinbus.pairing.core.failover import ForceFailover
from twinbus.pairing.lifecycle.attaching import ProtectionMonitor
from twinbus.pairing.observing.events import (
    BacklogQueuePulled,
    BacklogQueueReturned,
    ProtectionChanged,
)
from twinbus.pairing.sdk.administration import BacklogAdministration, first_line
from twinbus.testing.fake_sdk import FakePair, accepts, hangs, refuses

pytestmark = pytest.mark.virtual_time


class WatchedPair(FakePair):
    """A fake pair whose protection is verified; it keeps the time of each look."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[float] = []
        self.answer: Any = accepts
        self.secondary.behaviour = self._take
        self.verification = self.client.state.verification
        self.events: list[Any] = []
        self.client.state.check_protection("queues were found")
        self.client.state.listeners.on_event(self.events.append)
        self.watch = ProtectionMonitor(self.client.state)
        self.watch.start()

    async def _take(self, sent: Any) -> None:
        if sent is None:
            self.looks.append(self.elapsed)
        await self.answer(sent)

    async def close(self) -> None:
        await self.watch.close()
        await self.client.close()


async def test_a_secondary_that_dies_unseen_ends_the_protection_and_its_return_is_seen() -> None:
    pair = WatchedPair()
    await asyncio.sleep(9)
    assert pair.looks == []
    await asyncio.sleep(391)
    assert pair.looks == [10, 190, 370]
    assert pair.verification.verified_at
    pair.answer = refuses
    await asyncio.sleep(200)
    assert pair.looks[3:] == [550, 580]  # A lost namespace is not asked for each queue.
    assert "ConnectionRefusedError" in pair.verification.error
    pair.answer = hangs
    await asyncio.sleep(40)
    pair.answer = accepts
    await asyncio.sleep(40)
    assert pair.verification.error == ""
    changes = [one.protected for one in pair.events if isinstance(one, ProtectionChanged)]
    assert changes == [False, True]
    assert pair.secondary.took == []
    await pair.close()


async def test_a_queue_that_is_gone_is_searched_for_and_another_one_verifies() -> None:
    pair = WatchedPair()
    lost: list[str] = []

    def note(queue: str, *, is_refusal: bool) -> None:
        lost.append(queue)

    pair.client.state.on_queue_lost = note

    async def gone(_: Any) -> None:
        raise MessagingEntityNotFoundError(message="gone")

    pair.secondary.by_entity[pair.client.state.paths[1]] = gone
    await asyncio.sleep(15)
    assert (lost, pair.verification.error) == ([pair.client.state.paths[1]], "")
    for path in pair.client.state.paths:
        pair.secondary.by_entity[path] = gone
    await asyncio.sleep(200)
    assert pair.verification.error.endswith("MessagingEntityNotFoundError: gone")
    await pair.close()


async def test_a_stored_divert_verifies_and_without_queues_nothing_is_tried() -> None:
    pair = WatchedPair()
    sender = pair.client.get_queue_sender("orders")
    pair.client.entity("orders").tell(ForceFailover())
    for _ in range(10):
        await sender.send_messages(ServiceBusMessage("x"), timeout=60)
        await asyncio.sleep(60)
    opened = len(pair.looks)
    assert pair.verification.verified_at is not None
    assert len(pair.secondary.took) == 10
    assert opened <= 3  # The links of the diverts.
    for path in pair.client.state.paths:
        pair.client.state.rotation.leave_out(path, "disabled")
    await asyncio.sleep(1_000)
    assert (len(pair.looks), pair.verification.error) == (opened, "")
    await pair.close()


async def test_a_pulled_queue_is_probed_and_an_answer_returns_it_with_its_event() -> None:
    pair = WatchedPair()
    state = pair.client.state
    silent, full = state.paths[:2]
    pair.secondary.by_entity[silent] = hangs
    state.pull(silent, "timed out", PullCause.SILENT)
    state.pull(full, "full", PullCause.FULL)
    await asyncio.sleep(9)
    assert pair.looks == []  # The probe at 5 s hangs; a full queue is not probed.
    del pair.secondary.by_entity[silent]
    await asyncio.sleep(8)
    # The look at 10 s leaves pulled queues alone; the probe follows 5 s after the end of the first.
    assert pair.looks == [10, 15]
    assert [*state.rotation.pulled(state.now)] == [full]
    pulls = [type(event) for event in pair.events if not isinstance(event, ProtectionChanged)]
    assert pulls == [BacklogQueuePulled, BacklogQueuePulled, BacklogQueueReturned]
    # It fails again although its link is attached: time alone returns it.
    state.pull(silent, "timed out", PullCause.SILENT)
    await asyncio.sleep(59)
    assert len(pair.looks) == 2
    assert {*state.rotation.pulled(state.now)} == {silent}
    assert not pair.verification.error
    await pair.close()


async def test_an_answer_to_a_look_or_a_probe_ends_the_loss_of_the_secondary() -> None:
    for pulls in (False, True):
        pair = WatchedPair()
        state = pair.client.state
        pair.client.entity("orders").tell(ForceFailover())
        pair.secondary.behaviour = refuses
        sending = asyncio.create_task(
            pair.client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"), timeout=60)
        )
        await asyncio.sleep(1)
        assert state.rotation.secondary.is_lost
        if pulls:
            state.pull(state.paths[2], "disabled")
        state.rotation.secondary.turn_at = pair.now + 1_000  # No call finds the secondary.
        pair.secondary.behaviour = accepts
        await sending
        assert pair.elapsed == (6 if pulls else 10)
        assert state.rotation.secondary.reason == ""
        await pair.close()


async def test_a_topic_in_place_of_a_backlog_queue_leaves_that_queue_out() -> None:
    class WithTopic(FakeAdministration):
        continuation_token: Any = "the list goes on"

        async def get_queue(self, path: str) -> Any:
            if path.endswith("/1"):
                # As the SDK's client for an entry that describes no queue.
                raise AttributeError("'NoneType' object has no attribute 'lock_duration'")
            return await super().get_queue(path)

    async with world(WithTopic()) as made:
        assert set(made.state.rotation.left_out) == {made.paths[1]}
        assert "another entity has its name" in made.state.rotation.left_out[made.paths[1]]
        assert made.state.rotation.queues == (made.paths[0], *made.paths[2:])


async def test_the_syphon_of_a_pair_finds_the_queues_of_another_application() -> None:
    async with world(enable_syphon=True) as made:
        assert made.handed_over == [made.paths]
        await asyncio.sleep(HOUR_S + 30.0)
        # Our own queues and those of others, then every 15 minutes.
        assert made.searched_at == [0.0, 0.0, 900.0, 1_800.0, 2_700.0, 3_600.0]
        label = made.state.primary.label
        others = [f"{label}/x-servicebus-transfer/{index}" for index in (17, 18)]
        made.admin.queues |= dict.fromkeys([*others, "another/x-servicebus-transfer/0"], "Active")
        made.pair.client.entity("orders").tell(ForceFailover())
        await asyncio.sleep(130.0)
        assert made.handed_over == [made.paths, others]
        assert made.searched_at == [3_660.0, 3_720.0]
        assert set(made.state.rotation.queues) == set(made.paths)


async def test_queues_that_are_left_out_for_the_same_reason_are_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin = FakeAdministration()
    async with world(admin) as made:
        admin.queues = dict.fromkeys(made.paths, "Disabled")
    caplog.clear()
    async with world(admin):
        [line] = [r.message for r in caplog.records if "left out" in r.message]
        assert line.startswith("contoso/x-servicebus-transfer/{0,1,2} are left out: ")


def test_a_host_that_cannot_be_connected_to_is_named_once_with_one_port() -> None:
    words = "Cannot connect to host nohost:443 ssl:default [Name or service not known]"
    assert first_line(OSError(words)) == "Name or service not known"


@pytest.mark.parametrize(
    ("host", "more", "is_hinted"),
    [
        ("localhost:5671", "", True),
        ("localhost:5671", "UseDevelopmentEmulator=true", False),
        ("contoso.servicebus.windows.net", "", False),
    ],
)
def test_a_forgotten_emulator_is_hinted_at(host: str, more: str, is_hinted: bool) -> None:
    key = "SharedAccessKeyName=x;SharedAccessKey=eA=="
    side = Namespace.of(f"Endpoint=sb://{host};{key};{more}")
    found = BacklogAdministration(side, None, timeout_s=1.0)._judged(  # type: ignore[arg-type]
        ConnectionResetError("reset"), None
    )
    assert ("UseDevelopmentEmulator=true" in str(found)) is is_hinted


STRING = "Endpoint=sb://{}.example/;SharedAccessKeyName=Root;SharedAccessKey=s3cret"


@pytest.mark.virtual_time
@pytest.mark.parametrize("side", ["primary", "secondary"])
@pytest.mark.parametrize("is_faulted", [False, True])
async def test_it_does_not_start_and_gives_its_namespaces_back(side: str, is_faulted: bool) -> None:
    first, second = (Namespace.from_connection_string(STRING.format(name)) for name in "ab")
    pair = pair_namespaces(first, second)
    ended = getattr(pair, side)
    if is_faulted:
        ended.fault(RuntimeError("by hand"))
    else:
        await ended.close()
    # Only a fault of the primary faults the pair.
    kind = PairFaultedError if is_faulted and side == "primary" else PairClosedError
    with pytest.raises(kind):
        await pair.start()
    assert pair.primary.state != "open"
    for namespace in (first, second):
        namespace.claim()
