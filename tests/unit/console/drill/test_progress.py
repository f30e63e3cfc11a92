"""The progress of a drill: its lines, with and without a terminal, and its page."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.console.drill.progress import DrillPage, DrillScreen
from twinbus.control.sockets import VARIABLE


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_when_a_phase_begins_and_one_when_it_ends() -> None:
    text = io.StringIO()
    with DrillScreen(text) as screen, screen.phase("drain", "10 messages wait", 10) as phase:
        phase.reach(5)
        phase.note = "10 messages are home"
    first, last = text.getvalue().splitlines()
    assert first == "drain    10 messages wait ..."
    assert last.startswith("drain ")
    assert last.endswith(" s  10 messages are home")
    assert list(screen.took_s) == ["drain"]


def test_a_phase_that_is_stopped_says_so_and_took_no_time() -> None:
    text = io.StringIO()
    screen = DrillScreen(text)
    with pytest.raises(KeyboardInterrupt), screen, screen.phase("send", "3 messages"):
        raise KeyboardInterrupt
    assert text.getvalue().splitlines()[-1].endswith("stopped")
    assert screen.took_s == {}


def test_a_terminal_shows_the_running_phases_with_their_bars_and_keeps_a_line_of_each() -> None:
    text = Terminal()
    with DrillScreen(text) as screen:
        with screen.phase("Spark", "starting Spark"), screen.phase("send", "rows") as send:
            send.total = 4
            send.reach(1, "3 senders")
            live = screen.text()
        with screen.phase("receive", "plain receivers"):
            pass
    assert live.startswith("Spark ")
    assert "starting Spark  |  send  " in live
    assert "[######..................]  25%" in live
    assert live.endswith(" s  3 senders")
    lines = text.getvalue().replace("\r\x1b[K", "\n").splitlines()
    assert [line.split()[0] for line in lines if line.endswith(("3 senders", "receivers"))][-1] == (
        "receive"
    )
    assert screen.text() == ""


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
