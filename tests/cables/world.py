"""A pair at one end of a cable, its namespaces at the other: one fault, and what it did.

Run in network namespaces of its own (`unshare --net`), with the name of a fault, its length and the
length of a lock of the entity, both in seconds; prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from tests.cables.far import KEY, PRIMARY_PORT, QUEUE, SECONDARY_PORT
from tests.cables.forwarder import FAR, OTHER
from twinbus import Namespace, SendAvailabilityOptions, pair_namespaces

CALM_S = 2.0
"""Before a fault."""

SEND_EVERY_S = 0.05
CALL_S = 12.0
"""The time that each send gives its call."""

GRACE_S = 5.0
"""A call that ends later than its time by more is late: the machine may be busy."""

ARRIVAL_S = 60.0
"""No promise: the time after a fault in which everything has to arrive, locks aside. What was on
its way to a receiver comes again when its lock ends, and may be lost on its way again."""

BACKLOG_QUEUES = 2
PAGE = 250

STRING = (
    "Endpoint=sb://{host}:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
    f"SharedAccessKey={KEY};UseDevelopmentEmulator=true;"
)

FAULTS: dict[str, dict[str, Any]] = {
    "one way, to the primary": {"to": FAR, "drop": ["near"]},
    "one way, from the primary": {"to": FAR, "drop": ["far"]},
    "black hole after the handshake": {"to": FAR, "after_bytes": 8},
    "7 % loss, 0.5 to 2 s": {"loss": 0.07, "delay_s": [0.25, 1.0]},
    "cut every 3 s": {"cut_every_s": 3.0},
}


@dataclass
class Result:
    accepted: int = 0
    refused: int = 0
    """Calls that ended with an error: their messages are the caller's."""
    lost: int = 0
    """Accepted, not received, and stored nowhere."""
    held: int = 0
    """Accepted, not received in time, and stored."""
    late: int = 0
    longest_s: float = 0.0
    struck: int = 0
    """Packets that the cable did not carry."""
    ids: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)


@contextmanager
def part(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the world; ready when the block begins, killed at its end."""
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def set_fault(cable: subprocess.Popen[str], fault: dict[str, Any]) -> int:
    """Replace the fault of the cable; returns how many packets the last one struck."""
    assert cable.stdin is not None
    assert cable.stdout is not None
    cable.stdin.write(json.dumps(fault) + "\n")
    cable.stdin.flush()
    return int(cable.stdout.readline())


async def send(pair: Any, result: Result, stopping: asyncio.Event) -> None:
    """Send without waiting for the last call; a call that is late is counted."""
    sender = pair.get_queue_sender(QUEUE)

    async def call(number: int) -> None:
        name, began = f"m{number}", time.monotonic()
        try:
            await sender.send_messages(ServiceBusMessage(name, message_id=name), timeout=CALL_S)
        except Exception:  # noqa: BLE001 - whatever it is, the caller has the message still
            result.refused += 1
        else:
            result.accepted += 1
            result.ids.add(name)
        took_s = time.monotonic() - began
        result.longest_s = max(result.longest_s, took_s)
        result.late += took_s > CALL_S + GRACE_S

    number = 0
    async with asyncio.TaskGroup() as group:
        while not stopping.is_set():
            number += 1
            group.create_task(call(number))
            await asyncio.sleep(SEND_EVERY_S)


async def receive(pair: Any, result: Result) -> None:
    """One receiver for all of it: after a fault nobody opens it again."""
    async with pair.get_queue_receiver(QUEUE, guard=True) as receiver:
        while True:
            for message in await receiver.receive_messages(50, max_wait_time=5):
                result.received.add(str(message.message_id))
                with suppress(Exception):  # what is not settled comes again
                    await receiver.complete_message(message)


async def stored() -> set[str]:
    """The ids of all messages in the entity and in the backlog, dead letters too."""
    found: set[str] = set()
    backlog = [f"contoso/x-servicebus-transfer/{number}" for number in range(BACKLOG_QUEUES)]
    places = {(FAR, PRIMARY_PORT): [QUEUE], (OTHER, SECONDARY_PORT): [*backlog, QUEUE]}
    for (host, port), names in places.items():
        async with ServiceBusClient.from_connection_string(
            STRING.format(host=host, port=port)
        ) as client:
            for name in names:
                for sub_queue in (None, ServiceBusSubQueue.DEAD_LETTER):
                    with suppress(MessagingEntityNotFoundError):
                        found |= await peeked(client, name, sub_queue)
    return found


async def peeked(
    client: ServiceBusClient, name: str, sub_queue: ServiceBusSubQueue | None
) -> set[str]:
    found: set[str] = set()
    async with client.get_queue_receiver(name, sub_queue=sub_queue) as receiver:
        start = 1
        while page := await receiver.peek_messages(PAGE, sequence_number=start):
            found |= {str(message.message_id) for message in page}
            start = int(page[-1].sequence_number or 0) + 1
    return found


async def run(
    fault: dict[str, Any], cable: subprocess.Popen[str], fault_s: float, lock_s: float
) -> Result:
    result, stopping = Result(), asyncio.Event()
    options = SendAvailabilityOptions(
        backlog_queue_count=BACKLOG_QUEUES,
        failover_interval=1.0,
        ping_primary_interval=1.0,
        attempt_timeout=3.0,
        enable_syphon=True,
        ledger="",
    )
    sides = (
        Namespace.from_connection_string(STRING.format(host=FAR, port=PRIMARY_PORT), "contoso"),
        Namespace.from_connection_string(STRING.format(host=OTHER, port=SECONDARY_PORT)),
    )
    async with pair_namespaces(*sides, options) as pair:
        receiving = asyncio.create_task(receive(pair, result))
        sending = asyncio.create_task(send(pair, result, stopping))
        await asyncio.sleep(CALM_S)
        await asyncio.to_thread(set_fault, cable, fault)
        await asyncio.sleep(fault_s)
        result.struck = await asyncio.to_thread(set_fault, cable, {})
        stopping.set()
        await sending
        ends = time.monotonic() + ARRIVAL_S + 3 * lock_s
        while not result.ids <= result.received and time.monotonic() < ends:
            if receiving.done():
                receiving.result()
            await asyncio.sleep(0.2)
        receiving.cancel()
    if missing := result.ids - result.received:
        result.held = len(missing & await stored())
        result.lost = len(missing) - result.held
    return result


def main() -> None:
    fault, fault_s, lock_s = FAULTS[sys.argv[1]], float(sys.argv[2]), float(sys.argv[3])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with ExitStack() as stack:
        python = (sys.executable, "-m")
        far_end = ("unshare", "--net", *python, "tests.cables.far", str(lock_s))
        far = stack.enter_context(part(*far_end))
        cable = stack.enter_context(part(*python, "tests.cables.forwarder", str(far.pid)))
        result = asyncio.run(run(fault, cable, fault_s, lock_s))
    shown = {name: value for name, value in asdict(result).items() if not isinstance(value, set)}
    sys.stdout.write(json.dumps(shown) + "\n")


if __name__ == "__main__":
    main()
