"""The pytest plugin in a project of its own: Twinbus comes from a wheel, not from the tree.

The wheel is built with hatchling and installed with pip into a new environment, both offline. Only
the packages that Twinbus needs are borrowed from the environment of these tests. The project is
the example of docs/testing.md, word for word.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)
OWN_TEST = """
import sys
import pytest
import twinbus
from twinbus.testing import LocalNamespace

@pytest.mark.parametrize("service_bus", [["orders"]], indirect=True)
def test_an_argument_declares_queues(service_bus: LocalNamespace, sent_messages) -> None:
    assert twinbus.__file__.startswith(sys.prefix)
    assert sent_messages("orders") == []
    with pytest.raises(Exception, match="exists already"):
        service_bus.create_queue("orders")

@pytest.mark.service_bus(queues=["orders"])
def test_a_wrong_mark(service_bus: LocalNamespace) -> None:
    pass
"""
LIMIT_S = 300.0


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": "",
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    # Those of the run that this test is part of are not for the project's own run.
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_PLUGINS"):
        environment.pop(name, None)
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def require(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it; the other packages are those of this one."""
    directory = tmp_path_factory.mktemp("wheel")
    require(
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory, cwd=ROOT)
    )
    [wheel] = directory.glob("twinbus-*.whl")
    venv = directory / ".venv"
    require(run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=directory))
    python = venv / "bin" / "python"
    pip = ("-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-compile", wheel)
    require(run(sys.executable, *pip, cwd=directory))
    [packages] = venv.glob("lib/python*/site-packages")
    # A path that a .pth file adds comes after the environment's own, and no .pth in it is read.
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "shared.pth").write_text("\n".join(shared or [sysconfig.get_path("purelib")]))
    return python


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files of the example, without a configuration of pytest."""
    for name, text in EXAMPLE.findall((ROOT / "docs" / "testing.md").read_text()):
        (tmp_path / name).write_text(text)
    (tmp_path / "test_own.py").write_text(OWN_TEST)
    return tmp_path


def test_the_example_of_the_docs_passes_with_the_wheel(environment: Path, project: Path) -> None:
    pytest_here = (environment, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers")
    done = run(*pytest_here, cwd=project)
    # The wrong mark is reported with its form; nothing else fails.
    assert "4 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "service_bus(*queues, topics={name: [subscriptions]})" in done.stdout


def test_the_plugin_costs_a_run_without_its_fixtures_little(
    environment: Path, tmp_path: Path
) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\n"
        "def test_nothing_heavy_is_loaded() -> None:\n"
        "    loaded = {name.split('.')[0] for name in sys.modules}\n"
        "    assert 'twinbus' in loaded\n"
        "    assert not loaded & {'azure', 'lmdb', 'uvicorn', 'starlette'}\n"
    )
    plugins = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio")
    require(run(environment, "-m", "pytest", "-q", *plugins, cwd=tmp_path))
