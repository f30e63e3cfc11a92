"""Queues that are left out for one reason are one line of the log."""

from __future__ import annotations

import pytest

from tests.unit.pairing.lifecycle.test_discovery_times import FakeAdministration, world
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.lifecycle.administration import BacklogAdministration, first_line


@pytest.mark.virtual_time
async def test_queues_that_are_left_out_for_the_same_reason_are_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    admin = FakeAdministration()
    async with world(monkeypatch, admin) as made:
        admin.queues = dict.fromkeys(made.paths, "Disabled")
    caplog.clear()
    async with world(monkeypatch, admin):
        [line] = [r.message for r in caplog.records if "left out" in r.message]
        assert line.startswith("contoso/x-servicebus-transfer/{0,1,2} are left out: ")


def test_a_host_that_cannot_be_connected_to_is_named_once_with_one_port() -> None:
    words = "Cannot connect to host nohost:443 ssl:default [Name or service not known]"
    assert first_line(OSError(words)) == "Name or service not known"


@pytest.mark.parametrize(
    ("host", "more", "is_hinted"),
    [
        ("localhost:5671", "", True),
        ("localhost:5671", "UseDevelopmentEmulator=true", False),
        ("contoso.servicebus.windows.net", "", False),
    ],
)
def test_a_forgotten_emulator_is_hinted_at(host: str, more: str, is_hinted: bool) -> None:
    key = "SharedAccessKeyName=x;SharedAccessKey=eA=="
    side = Namespace.of(f"Endpoint=sb://{host};{key};{more}")
    found = BacklogAdministration(side, None, timeout_s=1.0)._judged(  # type: ignore[arg-type]
        ConnectionResetError("reset"), None
    )
    assert ("UseDevelopmentEmulator=true" in str(found)) is is_hinted
