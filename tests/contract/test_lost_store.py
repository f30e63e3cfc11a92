"""Broken on purpose: a lost store, a peer that goes while a link opens, `twinbus faults`."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusServerBusyError

from tests.contract.conftest import Tour
from tests.contract.pairs import nothing_left
from tests.official_sdk import PATIENCE_S, administration, async_client, client
from tests.processes import ServedBroker, room_for, until
from tests.unit.console.commands import Ran, run
from twinbus import EmbeddedBroker
from twinbus.pairing.sdk.pooled_sender import SenderCloser
from twinbus.pairing.sdk.sender_pool import SenderPool, open_only

pytestmark = pytest.mark.contract


def health(broker: EmbeddedBroker, **headers: str) -> tuple[int, dict[str, Any]]:
    url = f"http://localhost:{broker.port()}/health"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def send(text: str) -> None:
    with client(text, retry_total=0) as sdk, sdk.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("x"), timeout=PATIENCE_S)


def removed(data: Path) -> None:
    shutil.rmtree(data)


def replaced(data: Path) -> None:
    """As a backup that is put back under a running broker."""
    copy = data.with_name("copy")
    shutil.copytree(data, copy)
    shutil.rmtree(data)
    copy.rename(data)


@pytest.mark.parametrize("harm", [removed, replaced])
@pytest.mark.parametrize("first", ["a look at /health", "a send"])
def test_a_store_that_is_gone_takes_nothing_more(tmp_path: Path, harm: Any, first: str) -> None:
    with EmbeddedBroker(data=tmp_path) as broker:
        broker.create_queue("orders")
        text = broker.connection_string()
        send(text)
        assert health(broker) == (200, {"status": "ok", "namespace": "twinbus"})
        harm(tmp_path / "twinbus")
        if first == "a send":
            with pytest.raises(ServiceBusError):
                send(text)
        # The broker looks at the files once a second.
        status, answer = until(lambda: health(broker) if health(broker)[0] != 200 else None)
        assert (status, answer["status"]) == (503, "gone")
        assert "the data files" in answer["detail"]
        with pytest.raises(ServiceBusError):
            send(text)


def test_paths_are_shown_to_those_only_who_may_read_the_metrics(tmp_path: Path) -> None:
    with EmbeddedBroker(data=tmp_path, metrics_token="t") as broker, ExitStack() as disk:
        disk.enter_context(room_for(32 * 2**20))
        until(lambda: health(broker)[1]["status"] == "full")
        assert health(broker) == (200, {"status": "full", "namespace": "twinbus"})
        assert str(tmp_path) in health(broker, Authorization="Bearer t")[1]["detail"]


def test_a_full_disk_is_said_and_stays_readable(tmp_path: Path) -> None:
    with EmbeddedBroker(data=tmp_path) as broker, ExitStack() as disk:
        broker.create_queue("orders")
        text = broker.connection_string()
        send(text)
        disk.enter_context(room_for(32 * 2**20))
        until(lambda: health(broker)[1]["status"] == "full")
        status, answer = health(broker)
        assert (status, answer["status"]) == (200, "full")
        assert "make room on the disk" in answer["detail"]
        with (
            client(text) as sdk,
            sdk.get_queue_receiver("orders", max_wait_time=PATIENCE_S) as receiver,
        ):
            (message,) = receiver.receive_messages()
            receiver.complete_message(message)


def test_serve_ends_when_its_store_is_gone(tmp_path: Path) -> None:
    with ServedBroker(tmp_path) as broker:
        with administration(broker.connection_string()) as admin:
            admin.create_queue("orders")
        shutil.rmtree(broker.data / "contoso")
        with pytest.raises(ServiceBusError):
            send(broker.connection_string())
        assert broker.process.wait(PATIENCE_S) == 1
        assert "clients are cut off" in broker.log()
        assert "the store is gone: " in broker.log().splitlines()[-1]
        assert "Traceback" not in broker.log()


ATTACH = b"\x00\x53\x12"
"""The descriptor of an ATTACH frame."""

OPENINGS = 3


class HangsUp:
    """A port in front of a broker that hangs up in place of passing on the n-th ATTACH frame."""

    def __init__(self, target_port: int, attach: int) -> None:
        self._target_port = target_port
        self._attach = attach
        self.ended: set[asyncio.Task[None]] = set()

    def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ended.add(asyncio.create_task(self._relay(reader, writer)))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("localhost", self._target_port)
        back = asyncio.create_task(_copy(to_reader, writer))
        seen = b""
        while data := await reader.read(65_536):
            seen += data
            if seen.count(ATTACH) >= self._attach:
                break
            to_writer.write(data)
        back.cancel()
        to_writer.close()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)


async def no_lookup() -> None:
    """The host is this machine."""


@pytest.mark.parametrize("attach", [1, 2, 3], ids=["of the tokens", "of the answers", "own"])
async def test_an_opening_that_the_peer_ends_leaves_no_socket(tour: Tour, attach: int) -> None:
    """A connection whose CLOSE cannot be written is forgotten by the SDK with its socket open."""
    queue, port = tour.queue(), tour.broker.port()
    hangs_up = HangsUp(port, attach)
    server = await asyncio.start_server(hangs_up, "localhost", 0)
    front_port = server.sockets[0].getsockname()[1]
    text = tour.broker.connection_string().replace(f":{port}", f":{front_port}")
    gc.disable()  # A collection would close what was forgotten, now and then.
    try:
        async with nothing_left():
            async with async_client(text, retry_total=0) as sdk:
                closer = SenderCloser(opening_limit_s=30.0)
                pool = SenderPool(lambda: sdk.get_queue_sender(queue), no_lookup, closer)
                for _ in range(OPENINGS):
                    pooled = pool.take()
                    assert pooled is not None
                    with pytest.raises(Exception, match="closed connection"):
                        await pool.attempt(pooled, open_only, 30.0)
                await pool.close(1.0)
                await closer.wait()
            await asyncio.gather(*hangs_up.ended)
    finally:
        gc.enable()
        server.close()


COULD_NOT, USAGE_ERROR = 1, 2


@pytest.fixture
def primary(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker("contoso") as served:
        served.create_queue("orders")
        monkeypatch.setenv("TWINBUS_PRIMARY", served.connection_string())
        yield served


def test_faults_are_added_listed_and_ended(
    primary: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    def types(*words: str) -> str:
        ran = run(capsys, "faults", *words)
        assert (ran.status, ran.err) == (0, "")
        return ran.out

    assert types("list") == "no fault is in force\n"
    said = types("add", "throttle", "--entity", "orders", "--for", "1h", "--times", "2")
    assert said.startswith("fault 1: throttle on orders, 2 times, for ")
    with (
        client(primary.connection_string(), retry_total=0) as sdk,
        sdk.get_queue_sender("orders") as sender,
        pytest.raises(ServiceBusServerBusyError),
    ):
        sender.send_messages(ServiceBusMessage("x"))
    delay = json.loads(types("add", "delay", "--delay", "20ms", "--output", "json"))
    assert (delay["id"], delay["delay_ms"], delay["entity"]) == (2, 20, None)
    types("add", "refuse-send", "--condition", "amqp:not-allowed", "--probability", "0.5")
    head, first, second, third = types("list").splitlines()
    assert head.split()[:3] == ["NUMBER", "KIND", "ENTITY"]
    assert first.split()[:4] == ["1", "throttle", "orders", "1"]
    assert second.split()[:3] == ["2", "delay", "all"]
    assert third.endswith("amqp:not-allowed, probability 0.5")
    assert types("remove", "2") == "fault 2 ended\n"
    listed = json.loads(types("list", "--output", "json"))["faults"]
    assert [fault["id"] for fault in listed] == [1, 3]
    assert types("clear") == "2 faults ended\n"
    assert types("list") == "no fault is in force\n"


def test_what_the_broker_refuses_is_one_line(
    primary: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*words: str) -> Ran:
        ran = run(capsys, "faults", *words)
        assert (ran.out, ran.err.count("\n")) == ("", 1)
        return ran

    wrong = fails("add", "explode")
    assert wrong.status == USAGE_ERROR
    assert "'explode' is unknown; use one of refuse_attach" in wrong.err
    gone = fails("remove", "7")
    assert gone.status == COULD_NOT
    assert "no fault '7' is in force" in gone.err
    text = primary.connection_string().replace("SAS_KEY_VALUE", "s3cret")
    monkeypatch.setenv("TWINBUS_PRIMARY", text)
    refused = fails("list")
    assert refused.status == COULD_NOT
    assert "wrong key or wrong key name" in refused.err
    monkeypatch.setenv("TWINBUS_PRIMARY", "")
    assert fails("list").status == USAGE_ERROR
