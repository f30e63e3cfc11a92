"""`twinbus serve --check`: what a broker wrote is sound, and what changed since is named."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from tests.end_to_end.raw_client import RawClient, message
from tests.official_sdk import administration, client
from tests.processes import ServedBroker, run_twinbus
from twinbus.console import ATTENTION, COULD_NOT, USAGE_ERROR

pytestmark = pytest.mark.end_to_end

RUN = 40


def checked(data: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return run_twinbus("serve", "--check", str(data), *more)


async def send_a_run(connection_string: str) -> None:
    """Messages that look alike, in one write: the broker stores them together."""
    raw = await RawClient.open(connection_string, "orders")
    sender = await raw.ready_sender("orders")
    tags = (number.to_bytes(8) for number in range(RUN))
    sent = [
        raw.sent(sender.link.send(message(f"run-{tag[-1]:02}", b"alike %02d" % tag[-1]), tag))
        for tag in tags
    ]
    raw.flush()
    await asyncio.gather(*sent)
    await raw.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory in which messages of every road were left."""
    with ServedBroker(tmp_path_factory.mktemp("check")) as broker:
        text = broker.connection_string()
        with administration(text) as admin, client(text) as sdk:
            admin.create_queue("orders", max_delivery_count=2)
            admin.create_topic("news")
            admin.create_subscription("news", "all")
            with (
                sdk.get_queue_sender("orders") as orders,
                sdk.get_topic_sender("news") as news,
                sdk.get_queue_receiver("orders") as receiver,
            ):
                orders.send_messages([ServiceBusMessage(f"one of {n}") for n in range(3)])
                news.send_messages(ServiceBusMessage("read all about it"))
                asyncio.run(send_a_run(text))
                done, dead, again = receiver.receive_messages(3)
                receiver.complete_message(done)
                receiver.dead_letter_message(dead)
                receiver.abandon_message(again)
        in_use = checked(broker.data)
        assert in_use.returncode == COULD_NOT
        [line] = in_use.stderr.splitlines()
        assert f"in use by process {broker.process.pid}: stop it" in line
        broker.terminate()
    return broker.data


def test_nothing_that_a_broker_stored_is_damaged(data: Path) -> None:
    before = (data / "contoso" / "data.mdb").read_bytes()
    found = checked(data)
    lines = found.stdout.splitlines()
    assert lines[0].startswith(f"contoso: {RUN + 3} messages, "), found
    assert lines[0].endswith("records read; nothing is damaged")
    assert len(lines) == 1
    assert found.returncode == 0
    assert (data / "contoso" / "data.mdb").read_bytes() == before


def spoil(data: Path, copy: Path, what: bytes, by: bytes) -> None:
    """A copy in which bytes of the file changed."""
    (copy / "contoso").mkdir(parents=True)
    content = (data / "contoso" / "data.mdb").read_bytes()
    assert what in content
    (copy / "contoso" / "data.mdb").write_bytes(content.replace(what, by))


def test_a_damaged_message_is_a_line_with_its_entity_and_number(data: Path, tmp_path: Path) -> None:
    spoil(data, tmp_path, b"alike 07", b"alike 08")
    found = checked(tmp_path)
    assert found.returncode == ATTENTION
    line, last = found.stdout.splitlines()
    assert line == "contoso/orders: message 11 is damaged: its checksum is wrong"
    assert last.endswith("1 damaged")
    [document] = json.loads(checked(tmp_path, "--output", "json").stdout)
    assert document["damage"] == [
        {
            "entity": "orders",
            "sequence_number": 11,
            "what": "message 11 is damaged: its checksum is wrong",
        }
    ]


def test_a_file_that_was_cut_short_is_damage_and_no_crash(data: Path, tmp_path: Path) -> None:
    spoil(data, tmp_path, b"alike 07", b"alike 07")
    os.truncate(tmp_path / "contoso" / "data.mdb", 3 * 4096)
    found = checked(tmp_path)
    assert found.returncode == ATTENTION
    assert "contoso: the index is wrong: " in found.stdout
    assert found.stderr == ""


@pytest.mark.parametrize(
    ("status", "words", "says"),
    [
        (COULD_NOT, (), "is not a data directory: no data.mdb is in it"),
        (USAGE_ERROR, ("contoso:0",), "--check serves nothing: give its directory alone"),
    ],
)
def test_wrong_use_is_one_line(
    tmp_path: Path, status: int, words: tuple[str, ...], says: str
) -> None:
    found = checked(tmp_path, *words)
    assert (found.returncode, found.stdout) == (status, "")
    assert found.stderr.startswith("twinbus: ")
    assert found.stderr.rstrip().endswith(says)
    assert list(tmp_path.iterdir()) == []
