"""A tour of two namespaces that refuse keys, with tokens of a managed identity that soon expire.

Each step is a person's: a pair, then the commands in processes of their own. Once straight to the
brokers, once over WebSocket through a proxy without which their hosts do not even have an address.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.certificates import write_authority, write_server_files
from tests.contract.http_proxy import TunnelProxy
from tests.contract.pairs import quick
from tests.end_to_end.identity_endpoint import SECRET, IdentityEndpoint
from tests.processes import ENTRY, ServedBroker, run_twinbus
from twinbus import Namespace, pair_namespaces
from twinbus.namespace.access import NamespaceAccess
from twinbus.namespace.administration_client import administration_client
from twinbus.namespace.endpoint import endpoint_of
from twinbus.syphon.connection.counts import QueueCounts, counts_of

pytestmark = pytest.mark.end_to_end

PATIENCE_S = 120.0
NAMES = ("contoso", "contoso-dr")
QUEUE = "contoso/x-servicebus-transfer/0"
LONG_S, SHORT_S = 120, 6
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

    async def divert(self, entity: str, *, seconds: int = 1) -> None:
        """Send a message each second with a pair that has failed over."""
        primary, secondary = (self.namespace(name) for name in NAMES)
        options = quick(backlog_queue_count=1, attempt_timeout=15.0)
        async with pair_namespaces(primary, secondary, options) as pair:
            async with pair.get_queue_sender(entity) as sender:
                pair.force_failover(entity)
                for number in range(seconds):
                    if number:
                        await asyncio.sleep(1.0)
                    await sender.send_messages(ServiceBusMessage(f"{number}"), timeout=60)
            assert pair.status().entities[entity].diverted == seconds

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
        command = [sys.executable, "-c", ENTRY, "syphon", "run", *words]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment},
        ) as process:
            try:
                yield
                process.send_signal(signal.SIGTERM)
                out, errors = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
        self.require_no_secret(out + errors)
        assert process.returncode == 0, out + errors

    def require_no_secret(self, text: str) -> None:
        assert "Traceback" not in text, text
        for secret in (SECRET, "s3cret", *(token for token, _ in self.identity.issued)):
            assert secret not in text


@pytest.fixture(params=["direct", "proxy"])
def desk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    # Pytest's own directories are too long for the address of a socket.
    directory = Path(tempfile.mkdtemp(prefix="tb-"))
    through_proxy = request.param == "proxy"
    chain, key = write_server_files(directory)
    tokens = directory / "tokens"
    options = ("--tls-cert", str(chain), "--tls-key", str(key), "--tokens", str(tokens))
    proxy = TunnelProxy({f"{name}.invalid": "localhost" for name in NAMES}, login="me:s3cret")
    with (
        IdentityEndpoint(tokens, life_s=LONG_S) as identity,
        proxy if through_proxy else nullcontext(),
        ServedBroker(
            directory, *NAMES, ephemeral=True, options=(*options, "--require-token")
        ) as served,
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
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield Desk(hosts, identity, environment)
        assert identity.refused == 0
    shutil.rmtree(directory)


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends, "it did not come to be"
        time.sleep(0.2)


@pytest.mark.filterwarnings(
    # The SDK's own calls, for the login of a proxy.
    "ignore:BasicAuth is deprecated:DeprecationWarning",
    "ignore:The 'proxy_auth' parameter:DeprecationWarning",
)
def test_a_tour_with_tokens_that_expire_and_are_renewed(desk: Desk) -> None:
    sides = (
        "--primary", desk.text("contoso"), "--secondary", desk.text("contoso-dr"),
        "--label", "contoso", "--credential", desk.environment["TWINBUS_CREDENTIAL"],
    )  # fmt: skip
    asyncio.run(desk.create("contoso", "orders"))

    # A pair whose tokens expire while it sends.
    desk.identity.life_s = SHORT_S
    asyncio.run(desk.divert("orders", seconds=2 * SHORT_S))
    desk.identity.life_s = LONG_S

    doctor = desk.json(
        "doctor", desk.text("contoso"), desk.text("contoso-dr"), "--entity", "orders",
        "--label", "contoso", "--queues", "1",
    )  # fmt: skip
    assert {finding["level"] for finding in doctor["findings"]} <= {"ok", "warn"}, doctor

    (listed,) = desk.json("backlog", "list", *sides)["queues"]
    assert (listed["path"], listed["active"]) == (QUEUE, 2 * SHORT_S)

    # A syphon with a lease that lives longer than any of its tokens.
    desk.identity.life_s = SHORT_S
    with desk.syphon(*sides, "--lease", "--poll", "2s", "--grace", "0s"):
        until(lambda: desk.counts("contoso", "orders").active == 2 * SHORT_S)
        first, ended = len(desk.identity.issued), time.time() + 2 * SHORT_S
        until(lambda: time.time() > ended)
        asyncio.run(desk.divert("orders"))
        until(lambda: desk.counts("contoso", "orders").active == 2 * SHORT_S + 1)
        assert len(desk.identity.issued) > first
        asyncio.run(desk.divert("ghost"))
        until(lambda: desk.counts("contoso-dr", QUEUE).dead_lettered == 1)
    desk.identity.life_s = LONG_S

    # The destination is there now: a replay and a drain deliver what was dead-lettered.
    asyncio.run(desk.create("contoso", "ghost"))
    (letter,) = desk.json("backlog", "dead-letters", "list", *sides)["messages"]
    assert letter["path"] == "ghost"
    replayed = desk.json("backlog", "dead-letters", "replay", "--all", *sides)["replayed"]
    assert len(replayed) == 1
    drained = desk.json("syphon", "drain", "--timeout", "60s", *sides)
    assert (drained["drained"], drained["forwarded"]) == (True, 1)
    assert desk.counts("contoso", "ghost").active == 1
