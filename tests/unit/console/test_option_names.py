"""What holds for every command: one meaning has one name, and no example shows a secret."""

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


def commands(command: Any, words: str = "twinbus") -> Iterator[tuple[str, Any]]:
    """This command and every one below it."""
    yield words, command
    if isinstance(command, TyperGroup):
        for name, below in command.commands.items():
            yield from commands(below, f"{words} {name}")


def options() -> Iterator[tuple[str, str]]:
    """Every option, with the command it belongs to."""
    for words, command in commands(get_command(app)):
        for parameter in command.params:
            yield from ((words, name) for name in parameter.opts if name.startswith("--"))


def test_no_option_has_a_second_name() -> None:
    found = list(options())
    assert ("twinbus serve", "--data") in found
    wrong = [(words, ONE_NAME[name]) for words, name in found if name in ONE_NAME]
    assert wrong == []


@pytest.mark.parametrize(
    "command",
    ["backlog create", "backlog prune", "syphon run", "doctor", "drill", "plan", "cost estimate"],
)
def test_backlog_queues_are_counted_by_queues(command: str) -> None:
    assert (f"twinbus {command}", "--queues") in set(options())


def test_no_example_has_a_connection_string_on_the_command_line() -> None:
    examples = {words: command.epilog or "" for words, command in commands(get_command(app))}
    assert "Example: twinbus doctor" in examples["twinbus doctor"]
    shown = [words for words, text in examples.items() if "$TWINBUS" in text or "sb://" in text]
    assert shown == []
