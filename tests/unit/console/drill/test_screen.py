"""The lines of a drill, with and without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from twinbus.console.drill.screen import DrillScreen


def screen(*, terminal: bool) -> tuple[DrillScreen, io.StringIO]:
    text = io.StringIO()
    return DrillScreen(
        Console(file=text, force_terminal=terminal, width=120, highlight=False)
    ), text


def test_a_log_gets_a_line_when_a_phase_begins_and_one_when_it_ends() -> None:
    lines, text = screen(terminal=False)
    with lines, lines.phase("drain", "10 messages wait", 10) as phase:
        phase.reach(5)
        phase.say("10 messages are home")
    first, last = text.getvalue().splitlines()
    assert first == "drain    10 messages wait ..."
    assert last.startswith("drain ")
    assert last.endswith(" s  10 messages are home")
    assert [took.phase for took in lines.took] == ["drain"]


def test_a_phase_that_is_stopped_says_so_and_took_no_time() -> None:
    lines, text = screen(terminal=False)
    with pytest.raises(KeyboardInterrupt), lines, lines.phase("send", "3 messages"):
        raise KeyboardInterrupt
    assert text.getvalue().splitlines()[-1].endswith("stopped")
    assert lines.took == []


def test_a_terminal_shows_every_phase_with_its_bar() -> None:
    lines, text = screen(terminal=True)
    with lines:
        with lines.phase("start", "two namespaces") as phase:
            phase.say("both run")
        with lines.phase("receive", "plain receivers") as phase:
            phase.expect(4)
            phase.reach(4)
    shown = text.getvalue()
    assert "both run" in shown
    assert "plain receivers" in shown
    assert "━" in shown
    assert "✓" in shown
