"""One Spark session for the tests of a process: its start is most of what they cost."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pytest

from tests.spark.java_options import QUICK_SETTINGS
from twinbus.pipeline.spark.session import start_session, stop_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


T = TypeVar("T")


class Started(NamedTuple):
    session: SparkSession
    announced: list[str]
    noise: str
    """What came on standard output and error while it started and ran a first job."""


@pytest.fixture(scope="session")
def started() -> Iterator[Started]:
    announced: list[str] = []
    settings = {
        **QUICK_SETTINGS,
        "spark.sql.shuffle.partitions": "1",
        # Any free port for the server of test_other_tools.py, which may start later.
        "spark.connect.grpc.binding.port": "0",
    }
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile() as output:
        # A Spark and a Python that are not ours must not be taken.
        patch.setenv("SPARK_HOME", "/nowhere")
        patch.setenv("PYSPARK_PYTHON", "/nowhere/python")
        with redirected(output.fileno()):
            session = start_session(master="local[1]", announce=announced.append, settings=settings)
            session.range(1).mapInArrow(_noisy, "id long").collect()
        assert os.environ["SPARK_HOME"] == "/nowhere"
        output.seek(0)
        noise = output.read().decode()
    jvm = session.sparkContext._gateway.proc  # type: ignore[union-attr]
    yield Started(session, announced, noise)
    stop_session(session)
    assert jvm.poll() is not None, "the JVM outlived its session"


@pytest.fixture(scope="session")
def spark(started: Started) -> SparkSession:
    return started.session


@contextlib.contextmanager
def redirected(target: int) -> Iterator[None]:
    """Standard output and error of this process and of what it starts go to `target`."""
    kept = [os.dup(stream) for stream in (1, 2)]
    try:
        for stream in (1, 2):
            os.dup2(target, stream)
        yield
    finally:
        for stream, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, stream)
            os.close(copy)


def _noisy(batches: Iterator[T]) -> Iterator[T]:
    os.write(1, b"from a worker\n")
    os.write(2, b"from a worker\n")
    yield from batches
