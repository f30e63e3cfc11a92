"""What mypy and pyright tell an application that uses Twinbus.

`shop.py` and `worker.py` are an application: under the strict mode of both checkers they have no
error. In typos.txt each marked line must be an error, and no other line.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT_S = 240.0

# Libraries that Twinbus uses inside: a user has most of them not installed, and without them mypy
# takes a third of the time.
MYPY_SETTINGS = """
[mypy]
strict = true
[mypy-{libraries}]
follow_imports = skip
""".format(
    libraries=",".join(
        f"{name}.*"
        for name in """aiohttp deltalake numpy opentelemetry pandas prometheus_client pyarrow
        pydantic pyspark rich starlette typer uvicorn""".split()
    )
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The application in a directory of its own, with the file of mistakes."""
    for name in ("shop.py", "worker.py"):
        shutil.copy(HERE / name, tmp_path)
    shutil.copy(HERE / "typos.txt", tmp_path / "typos.py")
    (tmp_path / "mypy.ini").write_text(MYPY_SETTINGS)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    return tmp_path


def program(name: str) -> str:
    found = shutil.which(name, path=sysconfig.get_path("scripts"))
    if found is None:
        pytest.skip(f"{name} is not installed; the extra `dev` has it")
    return found


def output(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    # 1: the project has errors. Anything else: the checker itself failed.
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def mypy_errors(project: Path) -> list[tuple[str, int, str]]:
    options = ("--python-executable", sys.executable, "--cache-dir", "/dev/null", "-O", "json")
    lines = output(program("mypy"), *options, ".", cwd=project).splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    return [
        (one["file"], one["line"], one["message"]) for one in found if one["severity"] == "error"
    ]


def pyright_errors(project: Path) -> list[tuple[str, int, str]]:
    options = ("--pythonpath", sys.executable, "--outputjson", "--level", "error")
    text = output(program("basedpyright"), *options, ".", cwd=project)
    return [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"])
        for one in json.loads(text)["generalDiagnostics"]
    ]


@pytest.mark.parametrize("errors_of", [mypy_errors, pyright_errors])
def test_a_strict_checker_accepts_the_application_and_refuses_each_typo(
    errors_of: Callable[[Path], list[tuple[str, int, str]]], project: Path
) -> None:
    errors = errors_of(project)
    assert [one for one in errors if one[0] != "typos.py"] == []
    lines = (project / "typos.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("  # wrong")}
    found = {line: text for _, line, text in errors}
    assert [lines[number - 1] for number in sorted(wrong - found.keys())] == []
    assert {number: found[number] for number in found.keys() - wrong} == {}
