"""The package as a zip for executors, and which Spark may be used over Spark Connect."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.pipeline.spark.classic import is_in_one_process, package_zip
from twinbus.pipeline.spark.session import SparkStartError, require_tried

ALONE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"azure", "lmdb", "starlette", "uvicorn", "typer"}:
            raise ImportError(f"an executor has no {name}")

sys.meta_path.insert(0, Missing())
sys.path.insert(0, sys.argv[1])
import twinbus.pipeline.drain.task as task
print(task.__file__)
"""


def test_a_task_runs_from_the_zip_without_the_sdk(tmp_path: Path) -> None:
    archive = package_zip(tmp_path / "twinbus.zip")
    ran = subprocess.run(
        [sys.executable, "-c", ALONE, str(archive)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(archive))


def test_the_same_package_makes_the_same_bytes(tmp_path: Path) -> None:
    one, two = package_zip(tmp_path / "one.zip"), package_zip(tmp_path / "two.zip")
    assert one.read_bytes() == two.read_bytes()
    with zipfile.ZipFile(one) as archive:
        assert "twinbus/__init__.py" in archive.namelist()
        assert not [name for name in archive.namelist() if "__pycache__" in name]


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local", True), ("local[*,4]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_which_masters_have_executors_of_their_own(master: str, expected: bool) -> None:
    assert is_in_one_process(master) is expected


@pytest.mark.parametrize("version", ["4.3.0", "4.3.1-amzn-0", "5.0.0"])
def test_a_spark_that_counts_what_it_writes_is_used(version: str) -> None:
    remote: Any = SimpleNamespace(version=version)
    assert require_tried(remote) is remote


@pytest.mark.parametrize("version", ["4.0.5", "4.2.0", "3.5.1", "unknown"])
def test_a_spark_that_may_miscount_is_refused_in_one_line(version: str) -> None:
    remote: Any = SimpleNamespace(version=version)
    with pytest.raises(SparkStartError, match=r"^Spark Connect needs Spark 4\.3, this is [^\n]+$"):
        require_tried(remote)
