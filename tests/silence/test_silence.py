"""No guarded receiver stays silent while a message waits, whatever the namespace did to it."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.silence.faults import FAULTS
from tests.silence.world import WHOLE, Size, run_beside, run_fault, table_of
from twinbus.pairing.receiving import side, watchdog

pytestmark = pytest.mark.contract

SHORT = Size(guarded=4, connections=2, plain=0, limit_s=25.0, down_s=0.5, lock_s=5)
"""With checks after 1 to 2 s. A message that a half-open link has got waits 5 s for its lock."""


async def test_a_few_guarded_receivers_go_on_after_each_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog, "SILENT_LEAST_S", 1.0)
    monkeypatch.setattr(watchdog, "SPREAD_S", 1.0)
    monkeypatch.setattr(side, "DRAIN_ANSWER_S", 2.0)
    outcomes = await asyncio.gather(*(run_fault(name, SHORT) for name in FAULTS))
    found = dict(zip(FAULTS, outcomes, strict=True))
    assert not any(outcome["guarded"].silent for outcome in outcomes), table_of(found)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", FAULTS)
def test_of_300_guarded_receivers_none_is_silent_for_a_minute(name: str) -> None:
    found = run_beside(name, WHOLE)
    sys.stdout.write(table_of({name: found}) + "\n")
    assert found["guarded"].silent == 0, table_of({name: found})
