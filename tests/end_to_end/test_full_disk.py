"""A disk that fills up: sends are refused with a reason, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusError, ServiceBusQuotaExceededError

from tests.end_to_end.raw_client import RawClient, message
from tests.official_sdk import administration, client, receive_all
from tests.processes import ServedBroker
from twinbus.broker.storage.data_directory import LOW_SPACE_BYTES

pytestmark = pytest.mark.end_to_end

MEGABYTE = 1024 * 1024
BODY = b"x" * (20 * 1024)
LARGE_BODY = b"x" * (200 * 1024)
SENDS_MAX = 4_000
"""More than fit."""

SENDS_AT_ONCE = 50
GUARD_LOOKS_EVERY_S = 1.0
TURNS_MAX = 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    with ServedBroker(tmp_path) as served:
        with administration(served.connection_string()) as admin:
            admin.create_queue("orders")
        yield served


def send_until_refused(sdk: ServiceBusClient) -> tuple[list[str], ServiceBusError]:
    """Ids of the acknowledged messages, and what stopped the next one."""
    acknowledged: list[str] = []
    with sdk.get_queue_sender("orders") as sender:
        for number in range(SENDS_MAX):
            try:
                sender.send_messages(ServiceBusMessage(BODY, message_id=str(number)))
            except ServiceBusError as error:
                return acknowledged, error
            acknowledged.append(str(number))
    raise AssertionError(f"{SENDS_MAX} messages were taken by a full disk")


def take_all(sdk: ServiceBusClient) -> list[str]:
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with sdk.get_queue_receiver("orders", receive_mode=mode) as receiver:
        return [str(message.message_id) for message in receive_all(receiver)]


def test_sends_are_refused_while_there_is_still_room_to_receive(broker: ServedBroker) -> None:
    broker.terminate()
    broker.file_size_max = LOW_SPACE_BYTES + 4 * MEGABYTE
    broker.start()
    with client(broker.connection_string()) as sdk:
        acknowledged, error = send_until_refused(sdk)
        assert isinstance(error, ServiceBusQuotaExceededError)
        assert "room" in str(error)
        assert acknowledged, "not even the first message was taken"
        assert "make room" in broker.log()
        assert take_all(sdk) == acknowledged
    assert "Traceback" not in broker.log()


async def fill_at_once(broker: ServedBroker) -> tuple[list[str], str]:
    """Leave no room and send on before the guard looks: what was acknowledged, and the last word.

    The guard looks once a second at most, so it is in this gap that a write can fail. On a busy
    machine the guard may look first, and refuse what then is not sent: then it is tried again.
    """
    pid = broker.process.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    connection = await RawClient.open(broker.connection_string())
    sender = await connection.sender("orders")
    acknowledged: list[str] = []
    for turn in range(TURNS_MAX):
        await sender.room()
        await asyncio.sleep(1.5 * GUARD_LOOKS_EVERY_S)
        await sender.send(message(f"before {turn}"))
        acknowledged.append(f"before {turn}")
        size = (broker.data / "contoso" / "data.mdb").stat().st_size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + MEGABYTE, hard))
        answers = {
            f"{turn}.{number}": sender.send(message(f"{turn}.{number}", BODY))
            for number in range(SENDS_AT_ONCE)
        }
        await asyncio.wait(answers.values())
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
        kept = [key for key, answer in answers.items() if answer.exception() is None]
        assert len(kept) < SENDS_AT_ONCE
        acknowledged += kept
        if connection.lost is not None:
            break
    return acknowledged, str(connection.lost)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limit of a running process")
def test_a_write_that_fails_is_not_acknowledged_and_harms_nothing(broker: ServedBroker) -> None:
    acknowledged, last_word = asyncio.run(fill_at_once(broker))
    assert "may not be stored" in last_word
    assert "nothing acknowledged is lost" in broker.log()
    assert "Traceback" not in broker.log()
    # It goes on by itself once there is room. A message whose send was not answered may be there.
    with client(broker.connection_string()) as sdk:
        with sdk.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("x", message_id="after"))
        acknowledged.append("after")
        receiver = sdk.get_queue_receiver("orders")
        stored = [str(each.message_id) for each in receiver.peek_messages(250)]
    assert [key for key in stored if key in acknowledged] == acknowledged
    broker.kill9()
    broker.restart()
    with client(broker.connection_string()) as sdk:
        assert take_all(sdk) == stored
