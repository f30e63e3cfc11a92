"""A program with pairs, for tests of the commands: sends for ever, until it is killed.

Arguments: the connection strings of both sides, the primary's name, then queues. A name of several
parts, `one+two`, makes as many pairs in the one process. With SIGUSR1 it stops sending.
PAIR_OPTIONS in its environment has further options of the pairs, in JSON, and SEND_EVERY_S the
pause between two sends to a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage

from tests.processes import line_of, started
from twinbus import Namespace, SendAvailabilityOptions, TwinbusError, pair_namespaces

EVERY_S = float(os.environ.get("SEND_EVERY_S", "0.05"))


async def send(pair: Any, queue: str, stopping: asyncio.Event) -> None:
    sender = pair.get_queue_sender(queue)
    number = 0
    while not stopping.is_set():
        number += 1
        message = ServiceBusMessage(f"{queue} {number}", message_id=f"{queue}-{number}")
        with contextlib.suppress(TwinbusError):
            await sender.send_messages(message)
        await asyncio.sleep(EVERY_S)


async def run(
    primary: str, secondary: str, name: str, queues: tuple[str, ...], stopping: asyncio.Event
) -> None:
    given: dict[str, Any] = {"failover_interval": 60, "ping_primary_interval": 60, "ledger": ""}
    given |= json.loads(os.environ.get("PAIR_OPTIONS", "{}"))
    options = SendAvailabilityOptions(backlog_queue_count=2, **given)
    side = Namespace.from_connection_string(primary, name=name)
    async with pair_namespaces(side, secondary, options) as pair:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.gather(*(send(pair, queue, stopping) for queue in queues))
        await asyncio.Event().wait()


async def main(primary: str, secondary: str, names: str, *queues: str) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, stopping.set)
    await asyncio.gather(
        *(run(primary, secondary, name, queues, stopping) for name in names.split("+"))
    )


@contextlib.contextmanager
def running(
    run_directory: Path,
    primary: str,
    secondary: str,
    names: str,
    *queues: str,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[subprocess.Popen[str]]:
    """The program in a process of its own for the block; ready when the block begins."""
    arguments = (__file__, primary, secondary, names, *queues)
    own = {"TWINBUS_RUN_DIR": str(run_directory), "PAIR_OPTIONS": json.dumps(options)}
    with started(*arguments, environment={**own, **(environment or {})}) as process:
        for _ in names.split("+"):
            assert line_of(process) == "ready\n"
        yield process


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
