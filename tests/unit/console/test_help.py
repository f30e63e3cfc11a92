"""Rules for every command: `--help` at 80 columns, an example, and names of options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from twinbus.console.cli import app

COLUMNS = 80
ONE_NAME = {
    "--count": "--queues",
    "--backlog-queues": "--queues",
    "--path": "--entity",
    "--session-order": "--strict",
}
"""Names that an option must not have, and what it is called instead."""


def commands(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command and group with the words that call it."""
    yield words, command
    if isinstance(command, TyperGroup):
        for name, below in command.commands.items():
            yield from commands(below, *words, name)


def help_of(of: typer.Typer, *words: str) -> str:
    """Return what `twinbus WORDS --help` prints on a terminal of 80 columns."""
    ran = CliRunner().invoke(of, [*words, "--help"], env={"COLUMNS": str(COLUMNS)})
    assert ran.exit_code == 0, ran.output
    return ran.output


def breaches(of: typer.Typer) -> list[str]:
    """Return what is wrong with the help of a command line, one line each."""
    found = []
    for words, command in commands(get_command(of)):
        name, text = " ".join(("twinbus", *words)), help_of(of, *words)
        summary = (command.help or "").split("\n\n")[0].strip()
        if f"\n  {summary}\n" not in text:
            found.append(f"{name}: the summary does not fit one line: {summary!r}")
        if isinstance(command, TyperGroup):
            listed = text.partition("\nCommands:\n")[2]
            for below, sub_command in command.commands.items():
                first = (sub_command.help or "").split("\n\n")[0].strip()
                if not re.search(rf"^  {below} +{re.escape(first)}$", listed, re.MULTILINE):
                    found.append(f"{name}: the list of commands cuts the summary of {below}")
        else:
            example = text.partition("\n  Example: ")[2].rstrip()
            if f"twinbus {' '.join(words)}" not in example:
                found.append(f"{name}: no example of the command at the end")
            elif "\n\n" in example or not _is_whole(example):
                found.append(f"{name}: the help formatter wrapped the example")
        found += [f"{name}: wider than 80: {line}" for line in text.splitlines() if len(line) > 80]
    return found


def _is_whole(example: str) -> bool:
    """Whether each line is continued with a backslash or begins a command of its own."""
    lines = example.splitlines()
    return all(
        before.endswith("\\") or after.startswith("  twinbus ") for before, after in pairwise(lines)
    )


def test_every_command_has_a_whole_summary_and_a_whole_example() -> None:
    assert len(list(commands(get_command(app)))) > 30
    assert breaches(app) == []


def planted(summary: str, epilog: str) -> typer.Typer:
    """Return a command line with one command that breaks a rule, and a good one beside it."""
    line = typer.Typer(help="A command line.", rich_markup_mode=None)

    @line.command("fine", help="Do it.", epilog="\b\nExample: twinbus fine")
    def fine() -> None: ...

    @line.command("wrong", help=summary, epilog=epilog)
    def wrong() -> None: ...

    return line


@pytest.mark.parametrize(
    ("summary", "epilog", "breach"),
    [
        ("Do it.", "\b\nExample: twinbus wrong", None),
        ("Do it " + "again and " * 6 + "again.", "\b\nExample: twinbus wrong", "cuts the summary"),
        ("Do it " + "again and " * 8 + "again.", "\b\nExample: twinbus wrong", "does not fit one"),
        ("Do it. Then stop.", "\b\nExample: twinbus wrong", "cuts the summary"),
        ("Do it.", "Exit status: 0.", "no example"),
        ("Do it.", "\b\nExample: twinbus other", "no example"),
        ("Do it.", "Example: twinbus wrong " + "--option value " * 5, "wrapped the example"),
        ("Do it.", "\b\nExample: twinbus wrong " + "--option value " * 5, "wider than 80"),
    ],
)
def test_each_rule_catches_a_planted_breach(summary: str, epilog: str, breach: str | None) -> None:
    found = breaches(planted(summary, epilog))
    if breach is None:
        assert found == []
    else:
        assert any(breach in line for line in found), found


def options() -> Iterator[tuple[str, str]]:
    """Every option, with the command it belongs to."""
    for words, command in commands(get_command(app)):
        for parameter in command.params:
            yield from ((" ".join(words), name) for name in parameter.opts if name.startswith("--"))


def test_no_option_has_a_second_name() -> None:
    found = list(options())
    assert ("serve", "--data") in found
    wrong = [(words, ONE_NAME[name]) for words, name in found if name in ONE_NAME]
    assert wrong == []


@pytest.mark.parametrize(
    "command",
    ["backlog create", "backlog prune", "syphon run", "doctor", "drill", "plan", "cost estimate"],
)
def test_backlog_queues_are_counted_by_queues(command: str) -> None:
    assert (command, "--queues") in set(options())


def test_no_example_has_a_connection_string_on_the_command_line() -> None:
    examples = {words: one.epilog or "" for words, one in commands(get_command(app))}
    assert "Example: twinbus doctor" in examples["doctor",]
    shown = [words for words, text in examples.items() if "$TWINBUS" in text or "sb://" in text]
    assert shown == []
