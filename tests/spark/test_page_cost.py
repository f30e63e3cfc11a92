"""The cost on the page, from tables and files since, is that of `twinbus report charges`."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.spark.ledgers import line, moved, received, sent
from twinbus.console.page.cost import PageCost
from twinbus.cost import prices
from twinbus.cost.arithmetic import SETTLEMENTS, CountingRule
from twinbus.pipeline.reports.charges import charges_report
from twinbus.pipeline.reports.documents import ReportRequest
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.store.stream import update

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BOOK = prices.standard()
LABEL = "contoso"


def write(place: Path, name: str) -> None:
    """Write records of now, of every kind that is charged and of some that are not."""
    now_ms = int(time.time() * 1000)
    made = [
        *(sent(f"{name}-a", size_bytes=70_000), received(f"{name}-a", 1)),
        *(sent(f"{name}-raised", 2, outcome="failed"), *moved(f"{name}-b", 3)),
        line("backlog_receive", cause="poll", size_bytes=200_000),
        line("manage", cause="administration"),
        line("state", entity="orders", state="failed over"),
        line("ping", cause="ping", entity="orders", outcome="unknown"),
    ]
    dated = [{**one, "at_ms": now_ms, "pair": f"{LABEL}+{LABEL}-dr"} for one in made]
    # As the ledger writes them, and whole at once.
    draft = place.with_name(f"_{place.name}")
    draft.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in dated))
    draft.rename(place)


@pytest.mark.soak  # 80 s of a worker in CI
def test_the_page_counts_what_the_report_counts(spark: SparkSession, tmp_path: Path) -> None:
    cost = PageCost(tmp_path, BOOK)
    write(tmp_path / "app-0.jsonl", "first")
    alone = by_cause(cost)
    update(spark, tmp_path)
    assert by_cause(cost) == alone, "the tables count what the file counted"
    write(tmp_path / "app-1.jsonl", "second")
    write(tmp_path / "app-2.jsonl.open", "third")
    # The page asks first: the report takes the ended file into the tables.
    found = by_cause(cost)
    assert found == reported(spark, tmp_path)
    assert found["failover"] == 3
    assert by_cause(cost) == found, "the same after it"
    # The outage counts the pair's own records only.
    since = time.time() - 3_600
    outage = cost.document(LABEL, since, 0)["outage"]
    causes = ("failover", "ping", "syphon")
    assert outage["operations"] == sum(found[cause] for cause in causes)
    assert cost.document("fabrikam", since, 0)["outage"]["operations"] == 0


def by_cause(cost: PageCost) -> Counter[str]:
    month = cost.document(LABEL, None, 0)["month"]
    found = Counter({one["cause"]: one["operations"] for one in month["by_cause"]})
    assert month["operations"] == found.total()
    return found


def reported(spark: SparkSession, ledger: Path) -> Counter[str]:
    """Charged units by cause, without the receives that the report assumes."""
    with current_tables(spark, ledger) as tables:
        report = charges_report(tables, ReportRequest(), BOOK, CountingRule())
    found: Counter[str] = Counter()
    for one in report.by_kind:
        if not one.assumed and one.operation not in SETTLEMENTS:
            found[one.cause] += one.units
    return found
