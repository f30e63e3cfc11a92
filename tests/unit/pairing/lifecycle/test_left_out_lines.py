"""Queues that are left out for one reason are one line of the log."""

from __future__ import annotations

import pytest

from tests.unit.pairing.lifecycle.test_discovery_times import FakeAdministration, world

pytestmark = pytest.mark.virtual_time


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
