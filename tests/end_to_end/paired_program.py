"""A program with pairs, for tests of the commands: sends for ever, until it is killed.

Arguments: the connection strings of both sides, the primary's name, then queues. A name of several
parts, `one+two`, makes as many pairs in the one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage

from tests.processes import line_of, started
from twinbus import Namespace, SendAvailabilityOptions, TwinbusError, pair_namespaces

INTERVAL_S = 0.05


async def send(pair: Any, queue: str) -> None:
    sender = pair.get_queue_sender(queue)
    number = 0
    while True:
        number += 1
        message = ServiceBusMessage(f"{queue} {number}", message_id=f"{queue}-{number}")
        with contextlib.suppress(TwinbusError):
            await sender.send_messages(message)
        await asyncio.sleep(INTERVAL_S)


async def run(primary: str, secondary: str, name: str, queues: list[str]) -> None:
    options = SendAvailabilityOptions(
        backlog_queue_count=2, failover_interval=60, ping_primary_interval=60, ledger=""
    )
    side = Namespace.from_connection_string(primary, name=name)
    async with pair_namespaces(side, secondary, options) as pair:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.gather(*(send(pair, queue) for queue in queues))
        await asyncio.sleep(3_600)


async def main(primary: str, secondary: str, names: str, *queues: str) -> None:
    await asyncio.gather(
        *(run(primary, secondary, name, list(queues)) for name in names.split("+"))
    )


@contextlib.contextmanager
def running(
    run_directory: Path, primary: str, secondary: str, names: str, *queues: str
) -> Iterator[subprocess.Popen[str]]:
    """The program in a process of its own for the block; ready when the block begins."""
    arguments = (__file__, primary, secondary, names, *queues)
    environment = {"TWINBUS_RUN_DIR": str(run_directory)}
    with started(*arguments, environment=environment) as process:
        for _ in names.split("+"):
            assert line_of(process) == "ready\n"
        yield process


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
