"""One meaning has one name, whichever command it is an option of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from twinbus.console.cli import app

ONE_NAME = {
    "--count": "--queues",
    "--backlog-queues": "--queues",
    "--path": "--entity",
    "--session-order": "--strict",
}
"""Names that an option must not have, and what it is called instead."""


def options(command: Any, words: str = "twinbus") -> Iterator[tuple[str, str]]:
    """Every command and option below this one."""
    for parameter in command.params:
        yield from ((words, name) for name in parameter.opts if name.startswith("--"))
    if isinstance(command, TyperGroup):
        for name, below in command.commands.items():
            yield from options(below, f"{words} {name}")


def test_no_option_has_a_second_name() -> None:
    found = list(options(get_command(app)))
    assert ("twinbus serve", "--data") in found
    wrong = [(words, ONE_NAME[name]) for words, name in found if name in ONE_NAME]
    assert wrong == []


@pytest.mark.parametrize(
    "command",
    ["backlog create", "backlog prune", "syphon run", "doctor", "drill", "plan", "cost estimate"],
)
def test_backlog_queues_are_counted_by_queues(command: str) -> None:
    assert (f"twinbus {command}", "--queues") in set(options(get_command(app)))
