"""One outage for many clients: a primary and a gateway in processes of their own, both real.

    faults  ->  primary  <-  gateway  <-  clients of the official SDKs
                                |
                            secondary

What was acknowledged is compared by text and id with what is in the primary in the end.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from azure.servicebus.management import ServiceBusAdministrationClient

from tests.end_to_end.raw_client import RawClient
from tests.gateway.gateway_process import GatewayProcess
from tests.official_sdk import Faults, administration
from tests.other_languages.client_programs import Send, SendingProgram, text_of
from tests.other_languages.toolchains import Program
from tests.processes import ServedBroker
from twinbus.broker.embedded import EmbeddedBroker

QUEUE = "orders"
PATIENCE_S = 180.0
"""How long anything may take, on a machine that does much more; on a quiet one it is seconds."""

SILENCE_S = 1.0
"""Before the queue is asked whether it has more: a ping in it expires in this time."""

SENDS_BEFORE = 4
"""Of each client between two faults: one of each kind."""

LATE = "late."
"""Begins the name of a client that started while the primary was dead."""

IS_HEALTHY = re.compile(r'^twinbus_entities\{.*state="healthy".*\} 1\.0$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outages:
    """Which faults the primary has, one after the other, and how the gateway is set up."""

    faults: Sequence[str]
    latecomers: Sequence[str]
    """Languages with a second client, which starts while the primary is dead."""
    gateway: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClientResult:
    """What became of one client's messages."""

    sends: list[Send]
    errors: list[str]
    lost: set[str]
    duplicates: dict[str, int]
    """Texts that arrived more than once although no attempt ended without an answer."""
    ids: dict[str, set[str]]
    """The ids with which each text arrived."""
    diverted: set[str]
    """Texts that went through the backlog."""


class OutageWorld:
    """The parts of the world while it runs."""

    def __init__(
        self,
        primary: ServedBroker,
        secondary: EmbeddedBroker,
        gateway: GatewayProcess,
        directory: Path,
        stack: ExitStack,
    ) -> None:
        """The stack ends the clients."""
        self.clients: list[SendingProgram] = []
        self.latecomers: dict[str, Program] = {}
        """Clients that start while the primary is dead for the first time."""
        self._primary = primary
        self._secondary = secondary
        self._gateway = gateway
        self._directory = directory
        self._stack = stack

    def add(self, name: str, program: Program) -> None:
        """Start a client."""
        text, log = self._gateway.connection_string(), self._directory / f"{name}.log"
        client = SendingProgram(program.outage, text, QUEUE, name, log)
        self.clients.append(self._stack.enter_context(client))

    def suffer(self, fault: str) -> None:
        """Let the primary have a fault until every client has met it, then wait for its end."""
        self._each_sent(SENDS_BEFORE)
        faults = {
            "killed": self._killed,
            "restarted": self._restarted,
            "hung": self._hung,
            "silent": self._silent,
        }
        faults[fault]()
        self._until(self._is_healthy, f"the entity is healthy after {fault}")

    def _killed(self) -> None:
        """End as a power cut would, and start again after the failover."""
        self._primary.kill9()
        while self.latecomers:
            self.add(*self.latecomers.popitem())
        self._each_sent(SENDS_BEFORE)
        self._primary.restart()

    def _restarted(self) -> None:
        """End as a power cut would, and start again at once."""
        self._primary.kill9()
        self._primary.restart()

    def _hung(self) -> None:
        """Do nothing, and keep the connections."""
        self._primary.process.send_signal(signal.SIGSTOP)
        try:
            self._each_sent(SENDS_BEFORE)
        finally:
            self._primary.process.send_signal(signal.SIGCONT)

    def _silent(self) -> None:
        """Answer everything but sends to the queue."""
        faults = Faults(self._primary.connection_string())
        faults.add("hang", entity=QUEUE)
        self._each_sent(SENDS_BEFORE)
        faults.clear()

    def end(self) -> None:
        """Stop the clients, then the gateway when the backlog has been moved."""
        self._each_sent(SENDS_BEFORE)
        for client in self.clients:
            status = client.stop()
            assert status == 0, f"{client.name} ended with {status}"
        with administration(self._secondary.connection_string()) as admin:
            self._until(lambda: _is_empty(admin), "the backlog is empty")
        assert self._gateway.terminate() == 0

    def _is_healthy(self) -> bool:
        url = f"http://localhost:{self._gateway.port()}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return IS_HEALTHY.search(answer.read().decode()) is not None

    def _each_sent(self, count: int) -> None:
        """Wait until each client has begun and ended so many sends from now on."""
        now_s = time.time()
        for client in self.clients:
            self._until(
                lambda client=client: client.has_sent_since(now_s, count),  # type: ignore[misc]
                f"{client.name} has sent {count} times",
            )

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline:
                said = {client.name: client.sends[-1:] for client in self.clients}
                log = self._gateway.log()[-3_000:]
                raise TimeoutError(f"not in {PATIENCE_S:g} s: {what}; {said}; the gateway:\n{log}")
            time.sleep(0.05)


def results_of(
    outages: Outages, programs: Mapping[str, Program], directory: Path
) -> dict[str, ClientResult]:
    """Run the outages under all clients at once; what became of the messages of each."""
    ledger = directory / "ledger"
    with ExitStack() as stack:
        primary = stack.enter_context(ServedBroker(directory / "primary", "contoso"))
        secondary = stack.enter_context(EmbeddedBroker("contoso-dr"))
        text = primary.connection_string()
        with administration(text) as admin:
            admin.create_queue(QUEUE)
        gateway = stack.enter_context(
            GatewayProcess(
                directory / "gateway",
                text,
                secondary.connection_string(),
                ("--ledger", str(ledger), *outages.gateway),
            )
        )
        world = OutageWorld(primary, secondary, gateway, directory, stack)
        for language, program in programs.items():
            world.add(language, program)
            if language in outages.latecomers:
                world.latecomers[f"{LATE}{language}"] = program
        for fault in outages.faults:
            world.suffer(fault)
        world.end()
        arrived = asyncio.run(_arrived(text))
        assert "Traceback" not in gateway.log(), gateway.log()
    unanswered, diverted = _ledger(ledger)
    return {one.name: _result(one, arrived, unanswered, diverted) for one in world.clients}


def _is_empty(admin: ServiceBusAdministrationClient) -> bool:
    return not any(queue.total_message_count for queue in admin.list_queues_runtime_properties())


def _result(
    client: SendingProgram,
    arrived: Counter[tuple[str, str]],
    unanswered: set[str],
    diverted: set[str],
) -> ClientResult:
    ids: dict[str, set[str]] = {}
    duplicates: dict[str, int] = {}
    for (text, message_id), count in arrived.items():
        if text.rpartition("-")[0] == client.name:
            ids.setdefault(text, set()).add(message_id)
            if count > 1 and message_id not in unanswered:
                duplicates[text] = count
    return ClientResult(
        client.sends,
        client.errors,
        client.accepted - ids.keys(),
        duplicates,
        ids,
        {text for text, some in ids.items() if some & diverted},
    )


def _ledger(directory: Path) -> tuple[set[str], set[str]]:
    """The ids of messages with an unanswered attempt (W1 to W3), and of diverted ones."""
    files = (path.read_text() for path in directory.rglob("*.jsonl*"))
    lines = [json.loads(line) for text in files for line in text.splitlines()]
    messages = [line for line in lines if "message_id" in line]
    return (
        {line["message_id"] for line in messages if line.get("outcome") == "unknown"},
        {line["message_id"] for line in messages if line["operation"] == "divert"},
    )


async def _arrived(primary: str) -> Counter[tuple[str, str]]:
    """How often each text and id is in the primary's queue, which is empty after it."""
    found: Counter[tuple[str, str]] = Counter()
    client = await RawClient.open(primary)
    receiver = await client.receiver(QUEUE, credit=500, settled=True)
    with administration(primary) as admin:
        while True:
            delivery = await receiver.receive(SILENCE_S)
            if delivery is not None:
                found[text_of(delivery.payload), delivery.key] += 1
            elif not admin.get_queue_runtime_properties(QUEUE).active_message_count:
                break
    await client.close()
    return found
