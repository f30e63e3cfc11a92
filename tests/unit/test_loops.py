"""What our own processes set up before their event loop runs."""

from __future__ import annotations

import gc
import sys

import pytest

from twinbus.loops import SWITCH_S, run_alone


def test_threads_of_our_own_processes_do_not_wait_long_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def interval_s() -> float:
        return sys.getswitchinterval()

    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "set_threshold", lambda *_: None)
    before_s = sys.getswitchinterval()
    try:
        assert run_alone(interval_s()) == pytest.approx(SWITCH_S)
    finally:
        sys.setswitchinterval(before_s)
    assert before_s > SWITCH_S
