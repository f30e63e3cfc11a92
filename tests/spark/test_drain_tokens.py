"""`twinbus syphon drain --engine spark` with tokens that expire, through a proxy, without keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.end_to_end.token_desk import QUEUE, SHORT_S, token_desk

COUNT, RATE_PER_S = 80, 4


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings(
    # The SDK's own calls, for the login of a proxy.
    "ignore:BasicAuth is deprecated:DeprecationWarning",
    "ignore:The 'proxy_auth' parameter:DeprecationWarning",
)
def test_tasks_sign_in_by_themselves_and_renew_their_tokens(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with token_desk(run_directory, through_proxy=True) as desk:
        for name, value in desk.environment.items():
            monkeypatch.setenv(name, value)
        asyncio.run(desk.create("contoso", "orders"))
        asyncio.run(desk.divert("orders", count=COUNT))
        sides = ("--primary", desk.text("contoso"), "--secondary", desk.text("contoso-dr"))
        desk.identity.life_s = SHORT_S
        # It takes longer than two tokens live.
        assert COUNT / RATE_PER_S > 2 * SHORT_S
        options = ("--engine", "spark", "--lease", "--rate", f"{RATE_PER_S}/s")
        done = desk.json("syphon", "drain", *options, *sides)
        assert (done["drained"], done["forwarded"], done["queues"]) == (True, COUNT, [QUEUE])
        assert desk.counts("contoso", "orders").active == COUNT
