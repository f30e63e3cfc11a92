"""The page of a drill shows the drill's own pair and no other of this user."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.console.drill.live_page import DrillPage
from twinbus.control.run_directory import VARIABLE


@pytest.mark.parametrize("before", [None, "/run/mine"])
def test_a_drill_with_a_page_has_a_run_directory_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str | None
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    world: Any = SimpleNamespace(directory=tmp_path)
    with DrillPage(world):
        assert os.environ[VARIABLE] == str(tmp_path / "run")
        assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert os.environ.get(VARIABLE) == before
