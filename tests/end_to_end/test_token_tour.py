"""Brokers that refuse keys: tokens from a file, and of a managed identity that soon expire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.core.exceptions import ClientAuthenticationError

from tests.end_to_end.raw_client import PATIENCE_S, RawClient, Refused, message
from tests.end_to_end.token_desk import LONG_S, QUEUE, SHORT_S, Desk, token_desk, until
from tests.official_sdk import administration
from twinbus import EmbeddedBroker
from twinbus.broker.port_access import PortAccess
from twinbus.errors import BrokerStartError

pytestmark = pytest.mark.end_to_end


@pytest.fixture(params=[pytest.param("direct", marks=pytest.mark.soak), "proxy"])
def desk(
    run_directory: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    with token_desk(run_directory, through_proxy=request.param == "proxy") as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.mark.timeout(900)
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
    asyncio.run(desk.divert("orders", count=2 * SHORT_S, pause_s=1.0))
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


def write(path: Path, *lines: str) -> None:
    """Replace the file at once, as a program that renews tokens should."""
    new = path.with_suffix(".new")
    new.write_text("\n".join(lines))
    new.replace(path)


def test_a_broker_that_nobody_could_use_does_not_start() -> None:
    with pytest.raises(BrokerStartError, match="nobody could connect"):
        PortAccess(require_token=True)


async def test_signatures_are_refused_and_tokens_of_the_file_taken_as_it_changes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens"
    write(path, "app one Send,Listen never", "old gone Send 1700000000")
    with EmbeddedBroker("contoso", token_file=path, require_token=True) as broker:
        broker.create_queue("orders")
        text = broker.connection_string()
        with pytest.raises(Refused, match="LocalAuthDisabled: Authorization failed because SAS"):
            await RawClient.open(text)
        with (
            administration(text) as admin,
            pytest.raises(ClientAuthenticationError, match="LocalAuthDisabled"),
        ):
            admin.create_queue("more")
        with pytest.raises(Refused, match="ExpiredToken: The token is expired"):
            await RawClient.open(text, token="gone")
        with pytest.raises(Refused, match="not accepted"):
            await RawClient.open(text, token="eyJ.two")
        write(path, "app eyJ.two Send never")
        connection = await RawClient.open(text, token="eyJ.two")
        sender = await connection.ready_sender("orders")
        await sender.send(message("1"))
        await connection.close()


async def test_open_links_are_detached_when_their_token_expires_unless_it_was_renewed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens"
    # Long enough for a busy machine to open the links.
    expires = int(time.time()) + 6
    write(path, f"app one Send,Listen {expires}", "new two Send,Listen never")
    with EmbeddedBroker("contoso", token_file=path, require_token=True) as broker:
        broker.create_queue("orders")
        idle = await RawClient.open(broker.connection_string(), token="one")
        renewed = await RawClient.open(broker.connection_string(), token="one")
        kept = await renewed.sender("orders")
        await renewed.put_token("two")
        await idle.sender("orders")
        await idle.receiver("orders", credit=1)
        async with asyncio.timeout(PATIENCE_S):
            errors = [await idle.detached.get() for _ in range(2)]
        assert time.time() >= expires
        for error in errors:
            assert error is not None
            assert error.condition == "amqp:link:detach-forced"
            assert "Code: RenewToken" in str(error.description)
        with pytest.raises(Refused, match=r"claim.* The token of rule 'app' for it has expired"):
            await idle.sender("orders")
        await kept.room()
        await kept.send(message("1"))
        assert renewed.detached.empty()
        for connection in (idle, renewed):
            await connection.close()
