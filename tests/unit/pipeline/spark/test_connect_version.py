"""Which Spark may be used over Spark Connect."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from twinbus.pipeline.spark.session import SparkStartError, require_tried


@pytest.mark.parametrize("version", ["4.3.0", "4.3.1-amzn-0", "5.0.0"])
def test_a_spark_that_counts_what_it_writes_is_used(version: str) -> None:
    remote: Any = SimpleNamespace(version=version)
    assert require_tried(remote) is remote


@pytest.mark.parametrize("version", ["4.0.5", "4.2.0", "3.5.1", "unknown"])
def test_a_spark_that_may_miscount_is_refused_in_one_line(version: str) -> None:
    remote: Any = SimpleNamespace(version=version)
    with pytest.raises(SparkStartError, match=r"^Spark Connect needs Spark 4\.3, this is [^\n]+$"):
        require_tried(remote)
