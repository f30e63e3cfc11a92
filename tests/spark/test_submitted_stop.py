"""The entry for `spark-submit` in the session of the tests, told to end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tests.spark.drain_world import QUEUES, world
from twinbus.pipeline import submit

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

EACH = 100


def test_a_batch_that_is_told_to_end_is_not_taken_for_drained(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path) as namespaces:
        namespaces.fill("s", EACH)
        monkeypatch.setenv("TWINBUS_PRIMARY", namespaces.primary)
        monkeypatch.setenv("TWINBUS_SECONDARY", namespaces.secondary)

        @contextlib.contextmanager
        def told(stop: threading.Event) -> Iterator[None]:
            stop.set()
            yield

        monkeypatch.setattr(submit, "_stopped_by_sigterm", told)
        assert submit.main(["drain", *QUEUES]) == submit.STOPPED
        assert namespaces.waiting() > 0
