"""The entry of the program, and its help."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group
from typer.testing import CliRunner

import twinbus
from tests.unit.console.commands import run
from twinbus.console.cli import COMMANDS, app
from twinbus.extras import install_command

ROOT = Path(__file__).resolve().parents[3]

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from {module} import {function}
{function}()
"""
"""The script on a machine that lacks some packages."""


def script(missing: set[str], *words: str) -> subprocess.CompletedProcess[str]:
    """What `twinbus WORDS` does there."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["twinbus"]
    module, function = entry.split(":")
    code = WITHOUT.format(missing=missing, module=module, function=function)
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"twinbus {twinbus.__version__}\n", "")


def test_spark_submit_runs_the_script_that_where_shows(capsys: pytest.CaptureFixture[str]) -> None:
    where = run(capsys, "--where").out.strip()
    done = subprocess.run(
        [sys.executable, where, "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"twinbus {twinbus.__version__}\n"), done.stderr


def test_the_script_runs_the_command_line() -> None:
    done = script(set(), "--version")
    assert (done.returncode, done.stdout) == (0, f"twinbus {twinbus.__version__}\n"), done.stderr


def test_without_the_extra_the_command_line_is_one_line() -> None:
    done = script({"typer"}, "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "twinbus: the command line needs the extra `console` (No module named 'typer'):"
        f" {install_command('console')}\n"
    )


def test_a_command_that_needs_another_extra_is_one_line() -> None:
    done = script({"lmdb"}, "serve", "contoso:0", "--ephemeral")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "twinbus: this command needs the extra `broker` (No module named 'lmdb'):"
        f" {install_command('broker')}\n"
    )


def test_a_module_of_ours_that_is_missing_is_a_fault_of_ours() -> None:
    done = script({"twinbus.console.cli"}, "--help")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "pip install" not in done.stderr


MODULES_OF = """
import sys
from twinbus.console.entry import main
sys.argv = ["twinbus", *{words!r}]
try:
    main()
except SystemExit:
    pass
print(*(name for name in sys.modules if name.startswith("twinbus.")), sep="\\n", file=sys.stderr)
"""


def modules_of(*words: str) -> set[str]:
    """Return the modules of ours that `twinbus WORDS` imports."""
    done = subprocess.run(
        [sys.executable, "-c", MODULES_OF.format(words=words)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["--where"]])
def test_what_is_about_no_command_imports_no_module_of_one(words: list[str]) -> None:
    found = {name for name in modules_of(*words) if name.startswith("twinbus.console.")}
    assert found == {"twinbus.console.entry", "twinbus.console.cli"}


def test_the_help_of_a_command_imports_no_other_command() -> None:
    found = modules_of("status", "--help")
    homes = {f"twinbus.console.{home.module}" for home in COMMANDS.values()}
    assert found & homes == {"twinbus.console.watch.cli"}


def test_the_list_of_commands_has_each_command_as_its_own_help_describes_it() -> None:
    found = get_command(app)
    assert isinstance(found, TyperGroup)
    for name, home in COMMANDS.items():
        below: Any = found.commands[name]
        assert isinstance(below, TyperGroup) == home.is_group, name
        assert below.help.split("\n\n")[0] == home.summary, name
    # Every command of a module that has several is in the list.
    alone = {home.module: home.app for home in COMMANDS.values() if not home.is_group}
    listed = {name for name, home in COMMANDS.items() if not home.is_group}
    there = {name for one in alone.values() for name in get_group(one).commands}
    assert there == listed


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("twinbus force", "force-failover"),
        ("twinbus backlog dead", "dead-letters"),
        ("twinbus status --wa", "--watch"),
    ],
)
def test_a_shell_completes_commands_and_options(line: str, completed: str) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    asked = CliRunner().invoke(app, [], env={"_TWINBUS_COMPLETE": "complete_bash", **words})
    assert asked.output.split() == [completed]


def test_an_output_that_cannot_encode_a_sign_gets_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.setenv("TWINBUS_RUN_DIR", str(tmp_path))
    done = script(set(), "top", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("o No pair runs here.")


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
