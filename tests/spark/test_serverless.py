"""Tables and reports in a session that keeps no rows, as serverless compute does."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn
from unittest import mock

import pytest

from tests.spark.kept import stored_tables, write_lines
from tests.spark.ledgers import diverted, moved, received, sent
from twinbus.pipeline.frames import read_ledger
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest
from twinbus.pipeline.reports.ledger_tables import batch_tables
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.store.stream import open_store, update

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.soak]  # above a minute of Spark


def barred(*given: Any, **more: Any) -> NoReturn:
    raise RuntimeError("[NOT_SUPPORTED_WITH_SERVERLESS] PERSIST TABLE is not supported")


def test_the_figures_are_the_same_where_nothing_is_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    kinds = {type(spark.range(1)), type(spark.range(1)).__mro__[1]}
    found = []
    for name in ("kept", "not-kept"):
        ledger = tmp_path / name
        with ExitStack() as stack:
            for kind in kinds if name == "not-kept" else ():
                for verb in ("persist", "cache", "localCheckpoint", "unpersist"):
                    stack.enter_context(mock.patch.object(kind, verb, barred))
            write_lines(ledger, "p-0.jsonl", [sent("a"), *moved("b"), diverted("c")])
            update(spark, ledger)
            write_lines(ledger, "p-1.jsonl", [received("a", 1), *moved("c", 2)])
            snapshot = update(spark, ledger)
            write_lines(ledger, "p-2.jsonl.open", [received("b", 3), diverted("d")])
            with current_tables(spark, ledger) as tables:
                current = conservation_report(tables, ReportRequest(), None)
            with batch_tables(spark, ledger) as batch:
                whole = conservation_report(batch, ReportRequest(), None)
            reports = [
                replace(one, scope=replace(one.scope, ledger="")) for one in (current, whole)
            ]
            records = read_ledger(spark, ledger)
            read = records.count()
            stored = stored_tables(open_store(spark, ledger), snapshot)
        found.append((reports, read, stored))
    assert found[0] == found[1]
    assert found[0][0][0].total.accepted == 4
    assert found[0][1] == 13
