"""`twinbus syphon run` at its start, while the secondary is away."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from twinbus.console.namespaces import UnreachableError
from twinbus.console.output import Output
from twinbus.console.syphon import run
from twinbus.console.syphon.request import SyphonRequest
from twinbus.console.syphon.run import SyphonProgram
from twinbus.ledger import NullLedger
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core import secondary

KEY = "SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Pytest's own directories are too long for the address of a socket.
    directory = Path(tempfile.mkdtemp(prefix="tb-"))
    monkeypatch.setenv("TWINBUS_RUN_DIR", str(directory))
    yield
    shutil.rmtree(directory)


@pytest.mark.usefixtures("sockets")
def test_a_syphon_with_leases_waits_for_a_secondary_that_refuses_connections(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[Exception | None] = [UnreachableError("b refuses")] * 2 + [None]
    stop = asyncio.Event()

    async def lease_queue(_: SyphonRequest) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer
        stop.set()

    monkeypatch.setattr(SyphonRequest, "have_lease_queue", lease_queue)
    monkeypatch.setattr(run, "CHECK_EVERY_S", 0.001)
    monkeypatch.setattr(secondary, "LIST_FIRST_S", 0.0)
    # Nothing listens on these ports of this host.
    sides: dict[str, Any] = {
        side: Namespace.from_connection_string(f"Endpoint=sb://127.0.0.1:{port};{KEY}", name=side)
        for side, port in (("primary", 9), ("secondary", 11))
    }
    request = SyphonRequest(options=SendAvailabilityOptions(), lease=True, **sides)
    asyncio.run(SyphonProgram(request, NullLedger(), 2, Output.JSON).run(stop))
    events = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert (events[:2], events[-1], answers) == (["waiting", "running"], "stopped", [])
