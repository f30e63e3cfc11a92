"""`EmbeddedBroker`: a broker in this process for as long as a block lasts."""

from __future__ import annotations

import gc
import os
import socket
import threading
from http.client import HTTPConnection
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from tests.official_sdk import PATIENCE_S, administration, client
from twinbus.amqp.connection import AMQP_HEADER
from twinbus.broker.embedded import EmbeddedBroker
from twinbus.broker.faults import Fault
from twinbus.errors import BrokerStartError, ListenError, StoreError

pytestmark = pytest.mark.end_to_end


def threads() -> set[threading.Thread]:
    """The threads there are, bar those that the SDK leaves behind."""
    return {each for each in threading.enumerate() if "_keep_alive" not in each.name}


def open_files() -> int:
    gc.collect()  # of what the SDK leaves behind
    return len(os.listdir("/dev/fd"))


def exchange(text: str, queue: str) -> None:
    """Create a queue, send a message to it and leave it there."""
    with administration(text) as admin, client(text) as sdk:
        admin.create_queue(queue)
        with sdk.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("hello"))


def test_it_serves_and_leaves_no_thread_and_no_socket(tmp_path: Path) -> None:
    before, files = threads(), open_files()
    with EmbeddedBroker("contoso", "contoso-dr", data=tmp_path) as broker:
        for name in ("contoso", "contoso-dr"):
            exchange(broker.connection_string(name), "orders")
        port = broker.port("contoso-dr")
        # Two that stay connected until the end: the broker has to hang up on them.
        amqp = socket.create_connection(("localhost", port), timeout=PATIENCE_S)
        amqp.sendall(AMQP_HEADER)
        assert amqp.recv(8) == AMQP_HEADER
        http = HTTPConnection("localhost", port, timeout=PATIENCE_S)
        http.request("GET", "/health")
        assert http.getresponse().read()
    while amqp.recv(1 << 16):
        pass
    amqp.close()
    http.close()
    # What an earlier test left may end meanwhile.
    assert threads() <= before
    assert open_files() <= files
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("localhost", port), timeout=1)
    with (
        EmbeddedBroker("contoso", data=tmp_path) as broker,
        administration(broker.connection_string()) as admin,
    ):
        assert admin.get_queue_runtime_properties("orders").total_message_count == 1


def test_it_misbehaves_when_told_to() -> None:
    with EmbeddedBroker() as broker:
        exchange(broker.connection_string(), "orders")
        with client(broker.connection_string()) as sdk:
            sender = sdk.get_queue_sender("orders")
            number = broker.add_fault(Fault(kind="throttle", entity="orders"))
            with pytest.raises(ServiceBusServerBusyError):
                sender.send_messages(ServiceBusMessage("refused"))
            assert broker.remove_fault(number)
            assert not broker.remove_fault(number)
            broker.add_fault(Fault(kind="throttle"))
            broker.clear_faults()
            sender.send_messages(ServiceBusMessage("taken"))


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    before, files = threads(), open_files()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=str(port)):
            EmbeddedBroker("first", f"second:{port}", data=tmp_path / "data").start()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="file"):
        EmbeddedBroker("first", data=tmp_path / "file").start()
    with pytest.raises(BrokerStartError, match="no name"):
        EmbeddedBroker("no name")
    # What an earlier test left may end meanwhile.
    assert threads() <= before
    assert open_files() <= files


def test_two_brokers_of_one_process_do_not_share_a_directory(tmp_path: Path) -> None:
    with EmbeddedBroker("contoso", data=tmp_path) as broker:
        with pytest.raises(StoreError, match="in use"):
            EmbeddedBroker("contoso", data=tmp_path).start()
        exchange(broker.connection_string(), "orders")
