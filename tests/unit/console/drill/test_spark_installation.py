"""A drill begins before the packages of Spark are installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from twinbus.console import spark_thread
from twinbus.console.spark_thread import INSTALL, SparkInstallation
from twinbus.pipeline.spark.session import SparkStartError

WITHOUT_SPARK = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "deltalake", "pandas", "pyarrow", "numpy"}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
import twinbus.console.drill.phases
"""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that stands for Spark's packages: they are missing as long as it is."""
    packages = tmp_path / "pyspark"

    def require() -> None:
        if not packages.exists():
            raise SparkStartError("this command needs Spark")

    monkeypatch.setattr(spark_thread, "require_spark", require)
    monkeypatch.delenv(INSTALL, raising=False)
    return packages


def test_the_drill_is_imported_without_spark() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_SPARK], check=True)


def test_without_spark_and_a_command_that_installs_it_nothing_begins(installed: Path) -> None:
    with pytest.raises(SparkStartError, match="needs Spark"), SparkInstallation():
        pytest.fail("the drill began")


def test_the_packages_are_awaited(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = installed.with_name("gate")
    script = f"until test -e {gate}; do sleep 0.02; done; touch {installed}"
    monkeypatch.setenv(INSTALL, f"sh -c '{script}'")
    with SparkInstallation() as packages:
        assert not packages.is_done(0)
        gate.touch()
        while not packages.is_done(60):
            pass
        assert packages.is_done(0)


def test_a_failed_installation_ends_the_drill_with_its_last_line(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INSTALL, "sh -c 'echo first; echo no route to the index >&2; exit 1'")
    with SparkInstallation() as packages, pytest.raises(SparkStartError, match="no route to"):
        packages.is_done(60)


def test_an_installation_ends_with_its_drill(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INSTALL, "sleep 600")
    with SparkInstallation() as packages:
        process = packages.process
        assert process is not None
    assert process.returncode is not None
