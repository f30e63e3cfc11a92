"""One Spark session for all tests that need one: its start is most of what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinbus.pipeline.session import QUICK_START, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    settings = {**QUICK_START, "spark.sql.shuffle.partitions": "1"}
    with spark_session(master="local[1]", settings=settings) as session:
        yield session
