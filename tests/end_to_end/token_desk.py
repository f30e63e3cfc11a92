"""A machine with a managed identity, in front of two namespaces that refuse keys."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage

from tests import processes
from tests.contract.certificates import write_authority, write_server_files
from tests.contract.http_proxy import TunnelProxy
from tests.contract.pairs import quick
from tests.end_to_end.identity_endpoint import SECRET, IdentityEndpoint
from tests.processes import ENTRY, ServedBroker, run_twinbus, started
from twinbus import Namespace, pair_namespaces
from twinbus.client.administration import NotAnswered, QueueCounts, counts_of
from twinbus.namespace.access import NamespaceAccess, endpoint_of
from twinbus.namespace.administration_client import administration_client

PATIENCE_S = 120.0
NAMES = ("contoso", "contoso-dr")
QUEUE = "contoso/x-servicebus-transfer/0"
LONG_S, SHORT_S = 120, 8
"""Lives of tokens: one that a command may take on a busy machine, and one that ends meanwhile."""


class Desk:
    """A person at a command line, whose machine has an identity and knows no key."""

    def __init__(
        self, hosts: dict[str, str], identity: IdentityEndpoint, environment: dict[str, str]
    ) -> None:
        self.identity = identity
        self.environment = environment
        self._hosts = hosts

    def text(self, name: str) -> str:
        return f"sb://{self._hosts[name]}"

    def namespace(self, name: str) -> Namespace:
        return Namespace.from_access(
            NamespaceAccess.parse(
                self.text(name),
                name=name,
                credential=self.environment["TWINBUS_CREDENTIAL"],
                proxy=self.environment.get("TWINBUS_PROXY", ""),
            )
        )

    async def create(self, name: str, queue: str) -> None:
        async with administration_client(self.namespace(name)) as client:
            await client.create_queue(queue)

    def counts(self, name: str, queue: str) -> QueueCounts:
        return asyncio.run(counts_of(endpoint_of(self.namespace(name)), queue))

    async def divert(self, entity: str, *, count: int = 1, pause_s: float = 0.0) -> None:
        """Send messages with a pair that has failed over."""
        primary, secondary = (self.namespace(name) for name in NAMES)
        options = quick(backlog_queue_count=1, attempt_timeout=15.0)
        async with pair_namespaces(primary, secondary, options) as pair:
            async with pair.get_queue_sender(entity) as sender:
                pair.force_failover(entity)
                for number in range(count):
                    if number:
                        await asyncio.sleep(pause_s)
                    await sender.send_messages(ServiceBusMessage(f"{number}"), timeout=60)
            assert pair.status().entities[entity].diverted == count

    def types(self, *words: str, status: int = 0) -> str:
        done = run_twinbus(*words, environment=self.environment, timeout_s=PATIENCE_S)
        self.require_no_secret(done.stdout + done.stderr)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def json(self, *words: str, status: int = 0) -> Any:
        return json.loads(self.types(*words, "--output", "json", status=status))

    @contextmanager
    def syphon(self, *words: str) -> Iterator[None]:
        """`twinbus syphon run` in a process, ended by SIGTERM."""
        command = ("-c", ENTRY, "syphon", "run", *words)
        with started(*command, environment=self.environment, stderr=subprocess.PIPE) as process:
            yield
            process.send_signal(signal.SIGTERM)
            out, errors = process.communicate(timeout=PATIENCE_S)
        self.require_no_secret(out + errors)
        assert process.returncode == 0, out + errors

    def require_no_secret(self, text: str) -> None:
        assert "Traceback" not in text, text
        for secret in (SECRET, "s3cret", *(token for token, _ in self.identity.issued)):
            assert secret not in text


@contextmanager
def token_desk(directory: Path, *, through_proxy: bool) -> Iterator[Desk]:
    """Brokers, an identity and, if wanted, a proxy without which no broker can be reached."""
    chain, key = write_server_files(directory)
    tokens = directory / "tokens"
    options = (
        "--tls-cert", str(chain), "--tls-key", str(key), "--tokens", str(tokens), "--require-token",
        # With the default key a broker answers to the names of its own machine only.
        "--key", "nobody-uses-it",
    )  # fmt: skip
    proxy = TunnelProxy({f"{name}.invalid": "localhost" for name in NAMES}, login="me:s3cret")
    with (
        IdentityEndpoint(tokens, life_s=LONG_S) as identity,
        proxy if through_proxy else nullcontext(),
        ServedBroker(directory, *NAMES, ephemeral=True, options=options) as served,
    ):
        environment = {
            **identity.environment,
            "SSL_CERT_FILE": str(write_authority(directory)),
            "TWINBUS_RUN_DIR": str(directory),
            "TWINBUS_CREDENTIAL": "default" if through_proxy else "managed-identity",
        }
        if through_proxy:
            environment["TWINBUS_PROXY"] = "env:DESK_PROXY"
            environment["DESK_PROXY"] = proxy.url.replace("//", "//me:s3cret@")
        hosts = {
            name: f"{f'{name}.invalid' if through_proxy else 'localhost'}:{served.port(name)}"
            for name in NAMES
        }
        yield Desk(hosts, identity, environment)
        assert identity.refused == 0


def until(condition: Callable[[], bool]) -> None:
    def holds() -> bool:
        try:
            return condition()
        except NotAnswered:
            # A token of this machine may expire under way, as those of the commands.
            return False

    processes.until(holds)
