"""The proof from lines, without Spark, is the report of the tables."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from tests.spark import test_pairs, test_tables
from tests.spark.kept import assert_same, write_lines
from tests.spark.ledgers import (
    Line,
    brought_home,
    line,
    received,
    released,
    second_copy,
    sent,
    twinned,
)
from twinbus.pipeline.proof.proof import proof_of
from twinbus.pipeline.reports import ledger_tables
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ConservationReport, ReportRequest
from twinbus.pipeline.reports.ledger_tables import batch_tables
from twinbus.servicebus.names import board_path

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

QUEUE = "contoso/x-servicebus-transfer/3"
OTHER = "fabrikam/x-servicebus-transfer/0"
ENTITIES = [
    *("orders", "Orders", "news", "news/Subscriptions/a", QUEUE, OTHER, None),
    *("news/subscriptions/B/$DeadLetterQueue", f"{QUEUE}/$DeadLetterQueue"),
]


PLANTED = [
    *test_tables.LINES,
    *test_pairs.LINES,
    *(twinned("twin", 1), *brought_home("home", 9), twinned("home", 2)),
    *(*second_copy("second", 3), twinned("second", 1), received("second", 2)),
    *(sent("back", 1), received("back", 2), received("back", 4), received("back", 5)),
    *(released("back", 3), released("back", 6, outcome="unknown")),
    *(sent("left", 1), received("left", 2), released("left", 3, state="left")),
    received("left", 4),
]


def held_to_the_tables(spark: SparkSession, ledger: Path) -> ConservationReport:
    proof = proof_of(ledger).report
    # The rules in columns: those of a small ledger are the proof's own.
    with (
        mock.patch.object(ledger_tables, "SMALL_BYTES", -1),
        batch_tables(spark, ledger) as tables,
    ):
        assert_same(conservation_report(tables, ReportRequest(), None, in_brief=True), proof)
    return proof


def any_line(random: Random, message_id: str, **fixed: str) -> Line:
    """A line that a part of some pair could have written, or not quite."""
    operations = (
        "send divert divert forward receive receive complete dead_letter backlog_receive"
        " abandon release defer expire renew"
    )
    operation = random.choice(operations.split())
    told = {
        "outcome": random.choice(["ok", "ok", "ok", "failed", "unknown", None]),
        "view": random.choice([None, None, "client", "broker"]),
        "cause": random.choice(["application", "failover", "syphon", "consumer", None]),
        "pair": random.choice(["contoso+east", "Contoso+East", "fabrikam+east", None]),
        "namespace": random.choice(["contoso", "east", "fabrikam.servicebus.windows.net", None]),
        "side": random.choice([None, "primary", "secondary"]),
        "entity": random.choice(ENTITIES),
        "backlog_queue": random.choice([None, None, "orders", "news", QUEUE, OTHER]),
        "state": random.choice([None, None, "duplicate", "second_copy", "deleted", "left"]),
        "error": random.choice([None, "TTLExpiredException: over", "bad"]),
        "size_bytes": random.choice([None, 0, 100, 1 << 20]),
        "unrecorded": random.choice([None] * 50 + [2]),
    }
    made = line(operation, message_id, random.randrange(100_000) / 10, **{**told, **fixed})
    return {name: value for name, value in made.items() if value is not None}


def any_ledger(seed: int, ids: int) -> list[Line]:
    random = Random(seed)
    of_one = {"entity": "orders", "pair": "contoso+east", "namespace": "contoso"}
    lines = [
        # Half of the messages have one destination, so that they have copies.
        any_line(random, f"{number}-ä\u2028{seed}", **(of_one if number % 2 else {}))
        for number in range(ids)
        for _ in range(random.randint(1, 8))
    ]
    swept = {"view": "broker", "state": "deleted", "cause": None}
    lines += [line("manage", None, 5_000, entity=QUEUE.upper(), **swept)]
    lines += [one for one in (any_line(random, "x") for _ in range(20)) if one.pop("message_id")]
    board = {"cause": "board", "entity": board_path("contoso"), "pair": "contoso+east"}
    lines += [any_line(random, f"post-{number % 50}", **board) for number in range(100)]
    random.shuffle(lines)
    return lines


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in range(3, 7))]
)
def test_any_records_are_judged_as_the_tables_judge_them(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    lines = any_ledger(seed, 4_000)
    for part in range(3):
        write_lines(tmp_path, f"p-{part}.jsonl", lines[part::3])
    foreign = b'{"v":99,"at_ms":1,"operation":"send","process":"p"}\nno line\n\n{"v":1,"at_ms":17'
    (tmp_path / "q-0.jsonl").write_bytes(foreign)
    proof = held_to_the_tables(spark, tmp_path)
    assert proof.scope.rejected == {"torn": 1, "newer": 1, "foreign": 1}
    # Every fate occurs, and most reasons for which a copy exists.
    assert {one.fate for one in proof.messages} == {
        "lost", "expired", "dead_lettered", "undecided", "waiting",
    }  # fmt: skip
    assert len(proof.duplicate_windows) >= 4


def test_planted_truths_are_judged_as_the_tables_judge_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_lines(tmp_path, "p-0.jsonl", PLANTED)
    proof = held_to_the_tables(spark, tmp_path)
    named = {(one.primary_label, one.message_id): one.fate for one in proof.messages}
    assert named["contoso", "gone"] == named["contoso", "2"] == "lost"
    windows = {one.message_id: one.window for one in proof.duplicates}
    assert ("back" in windows, windows["left"]) == (False, "redelivered")
    assert json.dumps(proof.as_json())
