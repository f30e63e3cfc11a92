"""Ledgers of processes: two pairs are kept apart, and planted faults are found by message id."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.end_to_end.planted_world import ENTITY, LARGE, Planted, PlantedWorld
from tests.spark.kept import assert_same, write_lines
from tests.spark.ledgers import Line, fates, line, received, rows, sent
from twinbus.console.report.making import BacklogScan
from twinbus.console.report.sheets import sheet_of
from twinbus.console.sheet import text_of
from twinbus.cost import prices
from twinbus.cost.arithmetic import CountingRule
from twinbus.pipeline.proof.proof import proof_of
from twinbus.pipeline.reports.availability import availability_report
from twinbus.pipeline.reports.charges import charges_report
from twinbus.pipeline.reports.conservation import BacklogSnapshot, conservation_report
from twinbus.pipeline.reports.documents import Agreement, ReportRequest, ReportVerdict
from twinbus.pipeline.reports.ledger_tables import BatchTables
from twinbus.pipeline.reports.reconciliation import reconciliation_report
from twinbus.pipeline.store.current import CurrentTables, current_tables
from twinbus.pipeline.store.stream import update
from twinbus.pipeline.tables.schemas import LEDGER, SIGHTINGS
from twinbus.servicebus.names import board_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ALL = ReportRequest()
BACK_S = {"contoso": 60, "fabrikam": 200}


def queue_of(label: str) -> str:
    return f"{label}/x-servicebus-transfer/0"


def by_pair(label: str, operation: str, message_id: str | None, at_s: float, **more: Any) -> Line:
    """A line as the pair writes it: both have one secondary."""
    side = {"namespace": "east", "backlog_queue": queue_of(label)}
    where = side if operation == "divert" else {"namespace": label}
    return line(operation, message_id, at_s, **{"pair": f"{label}+east", **where, **more})


def by_syphon(label: str, operation: str, message_id: str, at_s: float) -> Line:
    """A line as the syphon writes it, which names no pair; a drain has its own name for it."""
    namespace = "localhost-5671" if operation == "forward" else "east"
    told: dict[str, Any] = {"namespace": namespace, "backlog_queue": queue_of(label)}
    return line(operation, message_id, at_s, pair=None, cause="syphon", size_bytes=100, **told)


def by_consumer(label: str, message_id: str, at_s: float) -> Line:
    return received(message_id, at_s, pair=None, namespace=label)


def by_broker(namespace: str, operation: str, message_id: str, entity: str = "orders") -> Line:
    return line(operation, message_id, 1, namespace=namespace, view="broker", entity=entity)


def story(label: str) -> Iterator[Line]:
    """An outage: `1` goes straight; `2` and `3` are diverted, and the syphon brings them home."""
    yield by_pair(label, "send", "1", 1, cause="application", size_bytes=100)
    yield by_consumer(label, "1", 2)
    yield by_pair(label, "state", None, 10, state="failed over", error="a send failed")
    for name in ("2", "3"):
        yield by_pair(label, "divert", name, 11, cause="failover", size_bytes=100)
        yield by_syphon(label, "backlog_receive", name, 300)
        yield by_syphon(label, "forward", name, 300)
        yield by_syphon(label, "complete", name, 300)
        yield by_consumer(label, name, 301)
    yield by_pair(label, "state", None, BACK_S[label], state="healthy", error="ping answered")


def is_lost(one: Line) -> bool:
    """What is missing of the message that the first pair loses, and the one that still waits."""
    told = (one["message_id"], one["operation"])
    return told in {("2", "forward"), ("2", "receive")} or (told[0] == "3" and told[1] != "divert")


LINES = [
    *(one for one in story("contoso") if not is_lost(one)),
    *story("fabrikam"),
    by_broker("east", "send", "post", board_path("contoso")),
]


@pytest.fixture(scope="module")
def tables(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CurrentTables]:
    """Tables of two batches and a tail: lines of both pairs are in each of them."""
    ledger = tmp_path_factory.mktemp("pairs")
    write_lines(ledger, "p-0.jsonl", LINES[0::3])
    update(spark, ledger)
    write_lines(ledger, "p-1.jsonl", LINES[1::3])
    write_lines(ledger, "p-2.jsonl.open", LINES[2::3])
    with current_tables(spark, ledger) as tables:
        yield tables


def test_what_one_pair_loses_the_other_does_not_hide(tables: CurrentTables) -> None:
    report = conservation_report(tables, ALL, None)
    told = {
        row.primary_label: (row.entity, row.accepted, row.delivered, row.undecided, row.received)
        for row in report.entities
    }
    assert told == {"contoso": ("orders", 3, 1, 1, 1), "fabrikam": ("orders", 3, 3, 0, 3)}
    assert [(one.message_id, one.fate, one.primary_label) for one in report.messages] == [
        ("2", "lost", "contoso"),
        ("3", "undecided", "contoso"),
    ]
    assert (report.verdict, report.lost_at_least) == (ReportVerdict.BAD, 1)
    text = text_of(sheet_of(report))
    assert "orders (contoso)" in text
    assert "orders (fabrikam)" in text
    # The notice board has no message of an application, and is none of the entities anywhere.
    in_brief = conservation_report(tables, ALL, None, in_brief=True)
    assert_same(in_brief, proof_of(Path(tables.ledger)).report)
    assert len(report.entities) == 2


def test_a_peek_into_one_secondary_decides_for_the_pairs_whose_queues_it_found(
    spark: SparkSession, tables: CurrentTables
) -> None:
    later_ms = LINES[0]["at_ms"] + 3_600_000
    nothing = spark.createDataFrame([], SIGHTINGS)
    elsewhere = BacklogSnapshot(nothing, later_ms, frozenset({"fabrikam"}))
    report = conservation_report(tables, ALL, elsewhere, in_brief=True)
    assert (report.total.undecided, report.lost_at_least) == (1, 1)
    assert any("the peek found no backlog queue of it" in text for text in report.unknown)
    # How many of its messages wait is as little known.
    waiting = {row.primary_label: row.waiting for row in report.entities}
    assert (waiting, report.total.waiting) == ({"contoso": None, "fabrikam": 0}, None)
    # A secondary without a backlog queue, such as a wrong one, is that of no pair.
    empty = BacklogSnapshot(nothing, later_ms, frozenset())
    assert conservation_report(tables, ALL, empty, in_brief=True) == report
    seen = spark.createDataFrame([("Orders", "3", "waiting", "fabrikam")], SIGHTINGS)
    here = BacklogSnapshot(seen, later_ms, frozenset({"contoso", "fabrikam"}))
    # The message of that name that waits is the other pair's.
    assert conservation_report(tables, ALL, here, in_brief=True).lost_at_least == 2


def test_each_pair_has_its_own_outage_and_its_own_bill(tables: CurrentTables) -> None:
    report = availability_report(tables, ALL)
    told = {row.primary_label: (row.entity, *row[1:5]) for row in report.entities}
    assert told == {
        "contoso": ("orders", 1, 50_000, False, 2),
        "fabrikam": ("orders", 1, 190_000, False, 2),
    }
    bill = charges_report(tables, ALL, prices.standard(), CountingRule())
    # A send, two diverts, two (or one) of each step of the syphon, and three (or one) receives.
    assert {row.primary_label: row.units for row in bill.by_entity} == {
        "contoso": 1 + 2 + 1 + 0 + 1 + 1,
        "fabrikam": 1 + 2 + 2 + 2 + 2 + 3,
    }
    at_secondary = [one for one in bill.lines if one.operation == "divert"]
    assert sorted((one.primary_label, one.units) for one in at_secondary) == [
        ("contoso", 2),
        ("fabrikam", 2),
    ]


NAMES = {
    "as the clients call them": ("contoso", "fabrikam"),
    "in its own words": ("one", "two"),
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_the_broker_is_compared_pair_by_pair_if_it_has_the_same_names(
    spark: SparkSession, tmp_path: Path, names: tuple[str, str]
) -> None:
    clients = [sent("a", pair="contoso+east"), sent("a", pair="fabrikam+east")]
    # The second one was acknowledged, and no broker has it.
    clients.append(sent("b", pair="fabrikam+east"))
    brokers = [by_broker(name, "send", "a") for name in names]
    write_lines(tmp_path, "p-0.jsonl", [*clients, *brokers])
    tables = BatchTables(spark, tmp_path)
    report = reconciliation_report(tables, ALL)
    tables.close()
    if names == NAMES["as the clients call them"]:
        assert report.rows == (
            Agreement("orders", "send", 1, 1, 0, 0, 0, "contoso"),
            Agreement("orders", "send", 2, 1, 1, 0, 0, "fabrikam"),
        )
    else:
        # It cannot be told which is which: all of them together, as if they were one.
        assert report.rows == (Agreement("orders", "send", 3, 2, 1, 0, 0, ""),)
    assert [one.message_id for one in report.differences] == ["b"]


def test_records_that_do_not_name_their_pair_count_for_the_only_one(spark: SparkSession) -> None:
    both = [by_pair(label, "divert", "both", 1) for label in ("contoso", "fabrikam")]
    records = [
        *(by_pair("Contoso", "divert", "mine", 1), received("mine", pair=None)),
        *(by_pair("contoso", "divert", "named", 1), by_broker("broker-7", "send", "named")),
        by_pair("contoso", "divert", "host", 1),
        by_consumer("Contoso.servicebus.windows.net", "host", 2),
        # Of two it cannot be told; and what a client of another primary says is that one's.
        *(*both, received("both", pair=None)),
        *(by_pair("contoso", "divert", "other", 1), by_consumer("fabrikam", "other", 2)),
    ]
    table = fates(spark.createDataFrame(rows(records), LEDGER))
    found = {
        (row["message_id"], row["primary_label"]): (row["fate"], row["received"])
        for row in table.collect()
    }
    assert found == {
        ("mine", "contoso"): ("delivered", True),
        ("named", "contoso"): ("delivered", False),
        ("host", "contoso"): ("delivered", True),
        ("both", "contoso"): ("undecided", False),
        ("both", "fabrikam"): ("undecided", False),
        ("both", ""): (None, True),
        ("other", "contoso"): ("undecided", False),
        ("other", "fabrikam"): (None, True),
    }


FLUSHED_S = 1.0
"""Ledgers are written five times a second; `twinbus report` waits as long after its look."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    with PlantedWorld(tmp_path_factory.mktemp("truth")) as planted:
        yield planted


@pytest.fixture(scope="module")
def truth_tables(spark: SparkSession, planted: Planted) -> Iterator[CurrentTables]:
    time.sleep(FLUSHED_S)
    with current_tables(spark, planted.ledger) as truth_tables:
        yield truth_tables


def test_the_proof_without_spark_says_what_the_tables_say(
    planted: Planted, truth_tables: CurrentTables
) -> None:
    report = conservation_report(truth_tables, ReportRequest(), None, in_brief=True)
    assert_same(report, proof_of(planted.ledger).report)
    assert report.lost_at_least


def test_every_planted_fault_is_named_and_nothing_else(
    spark: SparkSession, planted: Planted, truth_tables: CurrentTables
) -> None:
    looking = BacklogScan(planted.secondary)
    asyncio.run(looking.peek())
    report = conservation_report(truth_tables, ReportRequest(), looking.snapshot(spark))
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
    planted: Planted, truth_tables: CurrentTables
) -> None:
    report = reconciliation_report(truth_tables, ReportRequest())
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
    assert [row for row in report.rows if row.clients != row.broker] == []
    assert report.unexplained == 0
    # The sends that found out that the entities are down: refused, in words that promise nothing.
    assert {(one.entity, one.ahead, one.unanswered) for one in report.differences} == {
        (ENTITY, 0, 1),
        (LARGE, 0, 1),
    }
    assert len(report.differences) == report.explained == 3
