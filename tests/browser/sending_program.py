"""A program with a pair and a syphon that sends until it is killed; it fails over within seconds.

Arguments: the connection strings of both sides, the ledger, then the queues. With SIGUSR1 it stops
sending. With NO_SYPHON in its environment it has no syphon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import Any

from azure.servicebus import ServiceBusMessage

from twinbus import Namespace, SendAvailabilityOptions, TwinbusError, pair_namespaces

INTERVAL_S = 0.2
LABEL = "contoso"
QUEUES = 2


async def send(pair: Any, queue: str, stopping: asyncio.Event) -> None:
    sender = pair.get_queue_sender(queue)
    number = 0
    while not stopping.is_set():
        number += 1
        with contextlib.suppress(TwinbusError):
            await sender.send_messages(
                ServiceBusMessage(f"{queue} {number}", message_id=f"{queue}-{number}")
            )
        await asyncio.sleep(INTERVAL_S)


async def main(primary: str, secondary: str, ledger: str, *queues: str) -> None:
    options = SendAvailabilityOptions(
        backlog_queue_count=QUEUES,
        failover_interval=2,
        ping_primary_interval=2,
        enable_syphon="NO_SYPHON" not in os.environ,
        undeliverable_grace=0,
        ledger=ledger,
    )
    side = Namespace.from_connection_string(primary, name=LABEL)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stopping.set)
    async with pair_namespaces(side, secondary, options) as pair:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.gather(*(send(pair, queue, stopping) for queue in queues))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
