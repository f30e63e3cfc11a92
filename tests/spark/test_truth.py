"""The whole truth of an outage with planted faults, by message id, from real processes' ledgers.

The plant is `tests.end_to_end.planted_world`: what it did is known from the culprits, not from the
tables. The brokers keep ledgers of their own, and both views are asked.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.planted_world import ENTITY, LARGE, Planted, PlantedWorld
from twinbus.console.report.backlog_scan import BacklogScan
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest
from twinbus.pipeline.reports.reconciliation import reconciliation_report
from twinbus.pipeline.store.current import CurrentTables, current_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLUSHED_S = 1.0
"""Ledgers are written five times a second; `twinbus report` waits as long after its look."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    with PlantedWorld(tmp_path_factory.mktemp("truth")) as planted:
        yield planted


@pytest.fixture(scope="module")
def tables(spark: SparkSession, planted: Planted) -> Iterator[CurrentTables]:
    time.sleep(FLUSHED_S)
    with current_tables(spark, planted.ledger) as tables:
        yield tables


def test_every_planted_fault_is_named_and_nothing_else(
    spark: SparkSession, planted: Planted, tables: CurrentTables
) -> None:
    looking = BacklogScan(planted.secondary)
    asyncio.run(looking.peek())
    report = conservation_report(tables, ReportRequest(), looking.snapshot(spark))
    looking.close()

    found = defaultdict(set)
    for message in report.messages:
        found[message.fate].add(message.message_id)
    assert found == {
        "lost": {planted.dropped},
        "expired": {planted.expired},
        "dead_lettered": planted.dead_lettered,
        "waiting": planted.waiting,
    }
    assert {one.message_id: one.window for one in report.duplicates} == dict.fromkeys(
        planted.twice, "syphon"
    )
    total = report.total
    assert (total.accepted, total.lost, total.expired) == (len(planted.accepted), 1, 1)
    assert (total.dead_lettered, total.waiting, total.undecided) == (2, 2, 0)
    assert total.accepted == total.delivered + 1 + 1 + 2 + 2
    balances = {balance.entity: balance for balance in report.entities}
    assert balances.keys() == {ENTITY, LARGE}
    orders = balances[ENTITY]
    assert orders.delivered == orders.received == total.delivered == len(planted.received)


def test_the_clients_and_the_broker_agree_on_the_rest(
    planted: Planted, tables: CurrentTables
) -> None:
    report = reconciliation_report(tables, ReportRequest())
    assert {(row.entity, row.operation): row.clients for row in report.rows} == {
        (planted.queue, "send"): planted.diverted,
        (planted.queue, "receive"): planted.came_out,
        (planted.queue, "complete"): planted.came_out - len(planted.twice) - 2,
        (planted.queue, "dead_letter"): len(planted.dead_lettered),
        (ENTITY, "send"): len(planted.received) + len(planted.twice),
        (ENTITY, "receive"): len(planted.received) + len(planted.twice),
        (ENTITY, "complete"): len(planted.received) + len(planted.twice),
        (LARGE, "send"): 0,
    }
    assert all(row.clients == row.broker for row in report.rows)
    assert report.unexplained == 0
    # The sends that found out that the entities are down: refused, in words that promise nothing.
    assert {(one.entity, one.ahead, one.unanswered) for one in report.differences} == {
        (ENTITY, 0, 1),
        (LARGE, 0, 1),
    }
    assert len(report.differences) == report.explained == 3
