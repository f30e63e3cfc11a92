"""A store that is gone: /health says so, clients are cut off, `twinbus serve` ends."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.official_sdk import PATIENCE_S, administration, client
from tests.processes import ServedBroker
from twinbus.broker import server
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.storage import data_directory

pytestmark = pytest.mark.contract


def health(broker: EmbeddedBroker) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://localhost:{broker.port()}/health") as response:
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
def test_a_store_that_is_gone_takes_nothing_more(
    tmp_path: Path, harm: Any, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STORE_CHECK_S", 0.0)
    with EmbeddedBroker(data=tmp_path) as broker:
        broker.create_queue("orders")
        text = broker.connection_string()
        send(text)
        assert health(broker) == (200, {"status": "ok", "namespace": "twinbus"})
        harm(tmp_path / "twinbus")
        if first == "a send":
            with pytest.raises(ServiceBusError):
                send(text)
        status, answer = health(broker)
        assert (status, answer["status"]) == (503, "gone")
        assert "the data files" in answer["detail"]
        with pytest.raises(ServiceBusError):
            send(text)


def test_a_full_disk_is_said_and_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedBroker(data=tmp_path) as broker:
        broker.create_queue("orders")
        text = broker.connection_string()
        send(text)
        monkeypatch.setattr(data_directory, "LOW_SPACE_BYTES", 2**62)
        monkeypatch.setattr(data_directory, "_LOOK_EVERY_S", 0.0)
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
