"""Sends through a pair in any weather: each message ends in one way, and the ledger knows which.

The whole sending part runs, in virtual time, over namespaces that do anything to an attempt: take
it, refuse it, break off before or after storing it, hang likewise. Whatever comes, a message ends
as exactly one of: stored on the primary, stored in a backlog queue, or its caller was told (an
error, or the cancellation it asked for). It is stored twice, or stored although its caller was
told, only where an attempt ended without an answer, and each such attempt is in the ledger as
`unknown` (docs/guarantees, W1 and W2).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.errors import PartialDivertError
from twinbus.pairing.core.failover import ForceFailover, Freeze, MarkHealthy, Unfreeze
from twinbus.pairing.sdk.guards import id_of
from twinbus.testing import run_virtual
from twinbus.testing.fake_sdk import FakePair

FATES = ("take", "slow", "refuse", "break", "break_stored", "hang", "hang_stored",
         "busy", "full", "swallow")  # fmt: skip
BOTH = st.lists(st.sampled_from(FATES), max_size=12)
CALLS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.one_of(st.none(), st.sampled_from([0.05, 1.0, 7.0, 30.0])),
        st.one_of(st.none(), st.floats(0, 20)),
        st.floats(0, 10),
    ),
    min_size=1,
    max_size=5,
)
"""Messages of the call, its timeout, when it is cancelled, when it begins."""

COMMANDS = st.lists(
    st.tuples(
        st.floats(0, 20),
        st.sampled_from([ForceFailover(), MarkHealthy(), Freeze(), Unfreeze()]),
    ),
    max_size=3,
)


@dataclass
class Namespace:
    """What one side does to each attempt, and which messages it holds in truth."""

    fates: list[str]
    limit: int = 1_000
    holds: Counter[str] = field(default_factory=Counter)
    in_doubt: Counter[str] = field(default_factory=Counter)

    async def __call__(self, sent: Any) -> None:
        messages = sent if isinstance(sent, list) else [sent]
        if sent is None:
            return
        names = [id_of(message) or "" for message in messages]
        if len(names) > self.limit:
            raise MessageSizeExceededError(message="too large")
        fate = self.fates.pop(0) if self.fates else "take"
        if fate.endswith("_stored"):
            self.holds.update(names)
            self.in_doubt.update(names)
        match fate:
            case "take":
                await asyncio.sleep(0.01)
            case "slow":
                await asyncio.sleep(1.0)
            case "swallow":
                await self._swallow()
            case "refuse":
                raise ConnectionRefusedError("refused")
            case "break" | "break_stored":
                raise ConnectionResetError("broken off")
            case "hang" | "hang_stored":
                await asyncio.Event().wait()
            case "busy":
                raise ServiceBusServerBusyError(message="later")
            case "full":
                raise ServiceBusQuotaExceededError(message="full")
        self.holds.update(names)

    async def _swallow(self) -> None:
        for _ in range(3):
            try:
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                continue


async def told(sender: Any, names: list[str], timeout_s: float | None) -> dict[str, str]:
    """How the call ended for each of its messages."""
    messages = [ServiceBusMessage("x", message_id=name) for name in names]
    payload = messages[0] if len(messages) == 1 else messages
    failed: Any
    try:
        await sender.send_messages(payload, timeout=timeout_s)
    except asyncio.CancelledError:
        return dict.fromkeys(names, "cancelled")
    except Exception as error:  # noqa: BLE001  # whatever it is, it must have the ids
        failed = error
    else:
        return dict.fromkeys(names, "ok")
    assert failed.message_ids == tuple(names)
    stored = failed.stored_ids if isinstance(failed, PartialDivertError) else ()
    not_stored = failed.not_stored_ids if isinstance(failed, PartialDivertError) else names
    assert (*stored, *not_stored) == tuple(names)
    return dict.fromkeys(stored, "ok") | dict.fromkeys(not_stored, "raised")


def named(calls: list[Any]) -> Iterator[tuple[list[str], float | None, float | None, float]]:
    for number, (count, timeout_s, cancel_at, begin_at) in enumerate(calls):
        names = [f"{number}-{place}" for place in range(count)]
        yield names, timeout_s, cancel_at, begin_at


@settings(max_examples=max(150, settings().max_examples))
@given(BOTH, BOTH, CALLS, COMMANDS, st.sampled_from([0.0, 2.0, 8.0]), st.sampled_from([1, 1000]))
def test_every_message_ends_in_one_way_and_doubt_is_in_the_ledger(
    on_primary: list[str],
    on_secondary: list[str],
    calls: list[Any],
    commands: list[Any],
    failover_interval: float,
    limit: int,
) -> None:
    async def scenario() -> None:
        world = FakePair(failover_interval=failover_interval, retry_total=1, attempt_timeout=2.0)
        primary, secondary = Namespace([*on_primary]), Namespace([*on_secondary], limit)
        world.primary.behaviour, world.secondary.behaviour = primary, secondary
        sender = world.client.get_queue_sender("orders")
        ends: dict[str, str] = {}

        async def call(names: list[str], timeout_s: float | None) -> None:
            ends.update(await told(sender, names, timeout_s))

        async def one(
            names: list[str], timeout_s: float | None, cancel_at: float | None, begin_at: float
        ) -> None:
            await asyncio.sleep(begin_at)
            began = world.now
            task = asyncio.create_task(call(names, timeout_s))
            if cancel_at is not None:
                await asyncio.wait({task}, timeout=cancel_at)
                task.cancel()
            await asyncio.wait({task})
            if task.cancelled():
                # Before its first step, so that nothing was begun.
                ends.update(dict.fromkeys(names, "cancelled"))
            else:
                task.result()
            if timeout_s is not None:
                assert world.now - began <= timeout_s + 1.0, "it outlived its timeout"

        async def command(moment: float, event: Any) -> None:
            await asyncio.sleep(moment)
            world.client.entity("orders").tell(event)

        await asyncio.gather(
            *(one(*each) for each in named(calls)),
            *(command(*each) for each in commands),
        )
        check(world, primary, secondary, ends, calls)
        pool: Any = sender.pool
        assert not pool.attempt_timer.attempts
        assert not pool.leased
        await world.client.close()

    run_virtual(scenario())


def check(
    world: FakePair,
    primary: Namespace,
    secondary: Namespace,
    ends: dict[str, str],
    calls: list[Any],
) -> None:
    assert set(ends) == {name for names, *_ in named(calls) for name in names}
    lines = [line for line in world.ledger.lines if line["operation"] in ("send", "divert")]
    for name, end in ends.items():
        mine = [line["outcome"] for line in lines if line["message_id"] == name]
        stored = primary.holds[name] + secondary.holds[name]
        surely = stored - primary.in_doubt[name] - secondary.in_doubt[name]
        doubts = mine.count("unknown")
        assert surely == mine.count("ok"), "the ledger says what was acknowledged"
        assert surely <= 1, "nothing is sent again after it was acknowledged"
        assert stored - surely <= doubts, "each copy in doubt is in the ledger as unknown"
        match end:
            case "ok":
                assert surely == 1
            case "raised":
                assert surely == 0
            case "cancelled":
                # A cancellation may come just after the acknowledgement.
                assert surely <= 1
