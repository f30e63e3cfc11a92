"""Faults that nobody foresaw: a relay tells of them, tries again, and does not hang in silence."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import warnings
from collections.abc import Callable

import pytest

from twinbus.client.administration import CountsUnavailable, counts_of, list_backlog_queues
from twinbus.client.connection import NamespaceConnection
from twinbus.client.request_node import RequestRefused
from twinbus.errors import SyphonError
from twinbus.ledger import NullLedger
from twinbus.namespace.endpoint import endpoint_of
from twinbus.syphon.core.actions import Action
from twinbus.syphon.core.pump import Pump
from twinbus.syphon.host import drain
from twinbus.syphon.relay.lease import Leases
from twinbus.syphon.relay.relay import Relay

KEY = "SharedAccessKeyName=a;SharedAccessKey=b"
TYPO = f"Endpoint=sb://contoso..servicebus.windows.net;{KEY}"
PATIENCE_S = 10.0


def nobody_there() -> str:
    """A connection string at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    return f"Endpoint=sb://127.0.0.1:{port};{KEY};UseDevelopmentEmulator=true;"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.01)


async def test_a_host_that_can_be_none_is_told_of_on_both_sides() -> None:
    place = endpoint_of(TYPO)
    relay = Relay(place, place, "queue", pump=Pump(), ledger=NullLedger())
    relay.start()
    await until(lambda: len(relay.problems) == 2)
    await relay.close()
    assert "contoso cannot be reached" in relay.problems["primary"]
    assert "contoso cannot be reached" in relay.problems["secondary"]


async def test_a_host_that_can_be_none_has_no_counts_and_no_queues() -> None:
    with pytest.raises(CountsUnavailable, match="contoso does not answer"):
        await counts_of(endpoint_of(TYPO), "queue")
    with pytest.raises(SyphonError, match="contoso cannot be reached"):
        await list_backlog_queues(endpoint_of(TYPO))


def broken(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Have every line fail when it is opened, in a way that nobody expects; each try is noted."""
    tries: list[None] = []

    async def fail(_: NamespaceConnection) -> None:
        tries.append(None)
        raise RuntimeError("nobody expects this")

    monkeypatch.setattr(NamespaceConnection, "open", fail)
    return tries


async def test_a_side_that_fails_unexpectedly_is_told_of_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = broken(monkeypatch)
    place = endpoint_of(TYPO)
    relay = Relay(place, place, "queue", pump=Pump(), ledger=NullLedger())
    with caplog.at_level(logging.ERROR, "twinbus.syphon"):
        relay.start()
        await until(lambda: len(tries) >= 4)
        await relay.close()
    assert set(relay.problems) == {"primary", "secondary"}
    assert "nobody expects this" in relay.problems["primary"]
    assert any(record.exc_info for record in caplog.records), "with its traceback"


async def test_leases_that_fail_unexpectedly_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    queue = "contoso/x-servicebus-transfer/0"

    leases = Leases(endpoint_of(TYPO), [queue], lambda *_: None)
    leases.start()
    await until(lambda: "nobody expects this" in (leases.problem(queue) or ""))
    await leases.close()


async def test_a_drain_whose_pump_fails_ends_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Pump, now: float) -> list[Action]:
        raise AssertionError("a mistake of ours")

    monkeypatch.setattr(Pump, "tick", fail)
    place = nobody_there()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(
            SyphonError, match=r"queue: the syphon itself failed.*a mistake of ours"
        ):
            await drain(place, place, ["queue"], idle_s=0.1)


async def test_a_request_that_fails_unexpectedly_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise RuntimeError("nobody expects this")

    with caplog.at_level(logging.ERROR, "twinbus.syphon"):
        place = endpoint_of(TYPO)
        relay = Relay(place, place, "queue", pump=Pump(), ledger=NullLedger())
        relay._requests.start(fail())
        await until(lambda: bool(caplog.records))
        await relay.close()
    assert "queue: a background task failed" in caplog.text


async def test_a_request_that_is_cancelled_before_its_first_turn_is_not_warned_of() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        place = endpoint_of(TYPO)
        relay = Relay(place, place, "queue", pump=Pump(), ledger=NullLedger())
        relay._requests.start(relay._requests.find_deferred())
        await relay.close()
        gc.collect()
    assert [str(one.message) for one in caught] == []


@pytest.mark.virtual_time
async def test_a_backlog_queue_that_is_gone_for_good_is_not_tried_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[str] = []

    async def opened(_: NamespaceConnection) -> None:
        """Open at once."""

    async def refused(_: NamespaceConnection, path: str) -> bool:
        tries.append(path)
        raise RequestRefused(f"there is no queue {path}", 404, "amqp:not-found")

    monkeypatch.setattr(NamespaceConnection, "open", opened)
    monkeypatch.setattr(NamespaceConnection, "authorize", refused)
    place = endpoint_of(nobody_there())
    relay = Relay(place, place, "queue", pump=Pump(), ledger=NullLedger())
    relay.start()
    await asyncio.sleep(3_600.0)
    assert relay.problems == {"secondary": "there is no queue queue"}
    assert 60 <= tries.count("queue") <= 130
    await relay.close()
