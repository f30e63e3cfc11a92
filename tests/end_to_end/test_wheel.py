"""The wheel in an empty environment: what a user gets who installs it, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.processes import serve, wait_until
from tests.contract.test_readme import examples

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = "broker,console"
INSTALL_S = 900
"""Packages are downloaded; the network may be slow."""


def run(*command: str | Path, directory: Path, timeout_s: float = INSTALL_S) -> str:
    """Run a program without this environment's own settings; return what it printed."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TWIN"))
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.end_to_end
@pytest.mark.soak
def test_the_wheel_with_two_extras_runs_the_broker_and_the_first_example(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT, directory=tmp_path)
    (wheel,) = tmp_path.glob("twinbus-*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "empty", directory=tmp_path)
    bin_directory = tmp_path / "empty" / "bin"
    run(bin_directory / "pip", "-q", "install", f"{wheel}[{EXTRAS}]", directory=tmp_path)

    log = tmp_path / "serve.log"
    command = [str(bin_directory / "twinbus"), "serve", "contoso:0", "--ephemeral"]
    with serve(command, log=log) as process:
        wait_until(lambda: "ready" in log.read_text(), process=process, log=log, timeout_s=60)
        assert re.search(r"Endpoint=sb://localhost:\d+/#\w+;", log.read_text())

    program, printed = examples("README.md")[0]
    assert run(bin_directory / "python", "-c", program, directory=tmp_path) == printed
    # What needs another extra says so in one line.
    refused = subprocess.run(
        [str(bin_directory / "twinbus"), "drill"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode != 0
    assert "pip install" in refused.stderr
    assert "Traceback" not in refused.stderr
