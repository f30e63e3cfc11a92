"""The script `twinbus`: its version, and what it says where packages are missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import twinbus
from tests.unit.console.commands import run
from twinbus.console.cli import app
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
