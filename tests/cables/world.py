"""What may happen to a cable, and a world in which it does."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from tests.cables.far import KEY, PRIMARY_PORT, QUEUE, SECONDARY_PORT
from tests.cables.forwarder import FAR, MOVED, OTHER
from tests.cables.names import Names

BACKLOG = [f"contoso/x-servicebus-transfer/{number}" for number in range(2)]
PAGE = 250

PRIMARY_HOST, SECONDARY_HOST = "primary.cables", "secondary.cables"
STRING = (
    "Endpoint=sb://{host}:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
    f"SharedAccessKey={KEY};UseDevelopmentEmulator=true;"
)
PRIMARY = STRING.format(host=PRIMARY_HOST, port=PRIMARY_PORT)
SECONDARY = STRING.format(host=SECONDARY_HOST, port=SECONDARY_PORT)

SILENT = ["near", "far"]


@dataclass(frozen=True)
class Fault:
    cable: dict[str, Any]
    """As the cable is told."""
    moves_primary: bool = False
    """The fault is that the primary has left its address for good: its name has another."""
    ahead_s: tuple[float, float] = (0.0, 0.0)
    """How far the clocks of primary and secondary are ahead of ours, all the time."""


FAULTS: dict[str, Fault] = {
    "one way, to the primary": Fault({"to": FAR, "drop": ["near"]}),
    "one way, from the primary": Fault({"to": FAR, "drop": ["far"]}),
    "one way, from the secondary": Fault({"to": OTHER, "drop": ["far"]}),
    "black hole after the handshake": Fault({"to": FAR, "after_bytes": 8}),
    "7 % loss, 0.5 to 2 s": Fault({"loss": 0.07, "delay_s": [0.25, 1.0]}),
    "cut every 3 s": Fault({"cut_every_s": 3.0}),
    "another address of the primary": Fault({"to": FAR, "drop": SILENT}, moves_primary=True),
    "the primary 5 minutes ahead": Fault({"to": FAR, "drop": SILENT}, ahead_s=(300, -300)),
    "the primary 5 minutes behind": Fault({"to": FAR, "drop": SILENT}, ahead_s=(-300, 300)),
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
    unsettled: int = 0
    """Messages that came and could not be settled."""
    broken: int = 0
    """Receives that ended with an error."""
    ids: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)


@dataclass
class World:
    cable: subprocess.Popen[str]
    names: Names
    fault: Fault
    fault_s: float
    lock_s: float
    result: Result = field(default_factory=Result)

    async def suffer(self) -> None:
        """The fault, from its beginning to its end."""
        await asyncio.to_thread(self._set_fault, self.fault.cable)
        if self.fault.moves_primary:
            self.names.addresses[PRIMARY_HOST] = MOVED
        await asyncio.sleep(self.fault_s)
        after = self.fault.cable if self.fault.moves_primary else {}
        self.result.struck = await asyncio.to_thread(self._set_fault, after)

    def _set_fault(self, fault: dict[str, Any]) -> int:
        """Replace the fault of the cable; returns how many packets the last one struck."""
        assert self.cable.stdin is not None
        assert self.cable.stdout is not None
        self.cable.stdin.write(json.dumps(fault) + "\n")
        self.cable.stdin.flush()
        return int(self.cable.stdout.readline())


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


async def stored(*, in_primary: bool = True, in_secondary: bool = True) -> set[str]:
    """The ids of all messages in the entity and in the backlog, dead letters too."""
    found: set[str] = set()
    places = {PRIMARY: [QUEUE] * in_primary, SECONDARY: [*BACKLOG, QUEUE] * in_secondary}
    for text, names in places.items():
        async with ServiceBusClient.from_connection_string(text) as client:
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
