"""Ships this package to the executors of a cluster, as it is here: they need not have it.

What they need besides is Spark's own: Python of the driver's version, pyspark and pyarrow.
"""

from __future__ import annotations

import atexit
import importlib
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.pipeline.spark import classic
from twinbus.pipeline.spark.session import is_in_one_process, master_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE: Final = "twinbus"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""A zip knows no earlier time; the same package makes the same bytes."""


def ship_package(spark: SparkSession) -> None:
    """Have the tasks of this Spark application import the package of this process; once is enough.

    In local mode they run on this machine with this Python, and find it by themselves. Over Spark
    Connect nothing is shipped: there the package must be installed.
    """
    if not classic.is_classic(spark) or is_in_one_process(master_of(spark)):
        return
    if classic.is_shipped(spark) or not _root().is_dir():
        # Not a directory: it was shipped to this process too, and so to the executors.
        return
    # Spark reads the file again for each executor that comes, so it stays as long as this process.
    directory = Path(tempfile.mkdtemp(prefix="twinbus-ship-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    classic.ship_file(spark, package_zip(directory / f"{PACKAGE}.zip"))


def package_zip(path: Path) -> Path:
    """The package's files as a zip that Python imports from."""
    root = _root()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_dir() or "__pycache__" in file.parts:
                continue
            name = f"{PACKAGE}/{file.relative_to(root).as_posix()}"
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return path


def _root() -> Path:
    package: Any = importlib.import_module(PACKAGE)
    return Path(package.__file__).parent
