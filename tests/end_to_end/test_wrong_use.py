"""A broker started or used wrongly says so in one line, and what is stored stays as it was."""

from __future__ import annotations

import socket
from pathlib import Path

import lmdb
import pytest
from azure.servicebus import ServiceBusMessage

from tests.official_sdk import administration, client
from tests.processes import ServedBroker, run_twinbus
from twinbus.broker.storage import records

pytestmark = pytest.mark.end_to_end

COULD_NOT, ASKED_WRONGLY = 1, 2
"""Exit status of a command that failed, and of one that made no sense."""


def refused_start(status: int, *arguments: str) -> str:
    """The one line with which `twinbus serve` refuses to start."""
    ended = run_twinbus("serve", *arguments)
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("twinbus: ")
    assert ended.returncode == status, ended
    return lines[0]


def store_one(broker: ServedBroker) -> None:
    text = broker.connection_string()
    with administration(text) as admin, client(text) as sdk:
        admin.create_queue("kept")
        with sdk.get_queue_sender("kept") as sender:
            sender.send_messages(ServiceBusMessage("kept"))


def holds_the_one(broker: ServedBroker) -> bool:
    with client(broker.connection_string()) as sdk, sdk.get_queue_receiver("kept") as receiver:
        return [str(message) for message in receiver.peek_messages(5)] == ["kept"]


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused_start(ASKED_WRONGLY, f"contoso:{port}", "--data", str(tmp_path / "data"))
    assert f"localhost:{port}" in line
    assert "another program has the port" in line


def test_one_taken_port_of_two_leaves_nothing_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        data = str(tmp_path / "data")
        refused_start(ASKED_WRONGLY, "first:0", f"second:{port}", "--data", data)
    with ServedBroker(tmp_path, "first", "second") as broker:
        assert broker.health("second")["namespace"] == "second"


def test_a_file_in_the_way_of_the_data_directory(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("mine")
    line = refused_start(COULD_NOT, "contoso:0", "--data", str(file))
    assert str(file) in line
    assert file.read_text() == "mine"


def test_a_data_directory_that_cannot_be_made() -> None:
    # Not even root may make a directory here.
    line = refused_start(COULD_NOT, "contoso:0", "--data", "/proc/twinbus")
    assert "/proc/twinbus" in line


def test_a_data_directory_of_a_newer_format_or_of_something_else(tmp_path: Path) -> None:
    with ServedBroker(tmp_path) as broker:
        store_one(broker)
        broker.terminate()
    data = str(broker.data)
    set_format(broker.data, records.FORMAT_VERSION + 1)
    line = refused_start(COULD_NOT, "contoso:0", "--data", data)
    assert f"format {records.FORMAT_VERSION + 1}" in line
    set_format(broker.data, records.FORMAT_VERSION)
    with ServedBroker(tmp_path) as again:
        assert holds_the_one(again)
    (tmp_path / "foreign" / "contoso").mkdir(parents=True)
    (tmp_path / "foreign" / "contoso" / "data.mdb").write_bytes(b"not a database" * 1000)
    line = refused_start(COULD_NOT, "contoso:0", "--data", str(tmp_path / "foreign"))
    assert str(tmp_path / "foreign") in line


def set_format(data: Path, version: int) -> None:
    with (
        lmdb.open(str(data / "contoso")) as environment,
        environment.begin(write=True) as transaction,
    ):
        found = transaction.get(records.FORMAT_KEY)
        assert found is not None
        changed = version.to_bytes(len(found), "little")
        assert records.unpack_format(changed) == version
        transaction.put(records.FORMAT_KEY, changed)


def test_a_data_directory_in_use(tmp_path: Path) -> None:
    with ServedBroker(tmp_path) as broker:
        store_one(broker)
        line = refused_start(COULD_NOT, "contoso:0", "--data", str(broker.data))
        assert str(broker.process.pid) in line
        assert holds_the_one(broker)
