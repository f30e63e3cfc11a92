"""A tour of two namespaces that refuse keys, with tokens of a managed identity that soon expire.

Each step is a person's: a pair, then the commands in processes of their own. Once straight to the
brokers, once over WebSocket through a proxy without which their hosts do not even have an address.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.end_to_end.token_desk import LONG_S, QUEUE, SHORT_S, Desk, token_desk, until

# It starts a dozen processes and waits for tokens to expire: over a minute on an idle machine.
pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]


@pytest.fixture(params=[pytest.param("direct", marks=pytest.mark.soak), "proxy"])
def desk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with token_desk(through_proxy=request.param == "proxy") as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


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
