"""Ledgers that hide a loss: no report calls them "nothing lost"."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from tests.spark.kept import write_lines
from tests.spark.ledgers import (
    EPOCH_MS,
    Line,
    came_out,
    completed,
    diverted,
    line,
    moved,
    received,
    sent,
)
from twinbus.console.report.sheets import conservation_sheet
from twinbus.pipeline.reports.conservation import (
    BacklogSnapshot,
    _is_short,
    _unbalanced,
    awaited_messages,
    conservation_report,
)
from twinbus.pipeline.reports.documents import ConservationReport, ReportRequest, ReportVerdict
from twinbus.pipeline.reports.ledger_tables import batch_tables
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.store.writers import Recovery
from twinbus.pipeline.tables.conservation import BESIDE_FATES
from twinbus.pipeline.tables.journeys import FATES_OF_ACCEPTED
from twinbus.pipeline.tables.schemas import SIGHTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ALL = ReportRequest()
QUEUE = "contoso/x-servicebus-transfer/0"


def broker(operation: str, message_id: str, at_s: float = 0, **fields: Any) -> Line:
    """What the broker says of a message in a backlog queue."""
    return line(operation, message_id, at_s, **{"view": "broker", "entity": QUEUE, **fields})


def test_fates_that_do_not_add_up_to_what_was_accepted_are_told() -> None:
    row = {
        "destination": "orders",
        "accepted": 3,
        **dict.fromkeys((*FATES_OF_ACCEPTED, *BESIDE_FATES), 0),
    }
    [sentence] = _unbalanced([{**row, "delivered": 2}, {**row, "delivered": 2, "lost": 1}])
    assert "3 messages of orders were accepted and 2 have a fate" in sentence
    assert not [*_unbalanced([{**row, "delivered": 1, "waiting": 1, "undecided": 1}])]


@pytest.mark.parametrize(
    "tables_of", [current_tables, pytest.param(batch_tables, marks=pytest.mark.soak)]
)
def test_what_can_hide_a_loss_is_unknown_and_a_copy_counts_once(
    spark: SparkSession, tmp_path: Path, tables_of: Callable[..., Any]
) -> None:
    clients = [
        *(*moved("known"), received("known", 11), diverted("waits")),
        # The same id for two messages: the second was lost.
        *(*moved("again"), diverted("again", 20), came_out("again", 30), completed("again", 30)),
        # Sent again by a careful sender: both are known to be at their destination.
        *(sent("twice"), sent("twice", 1), sent("both"), *moved("both")),
    ]
    write_lines(tmp_path, "test-00000.jsonl", clients)
    first = tmp_path / "test-00000.jsonl"
    shutil.copy(first, tmp_path / "test-00000-copy.jsonl")
    (tmp_path / "test-00000.jsonl.open").write_bytes(first.read_bytes()[:-40])
    packed = json.dumps(sent("packed")).encode() + b"\n"
    (tmp_path / "test-00001.jsonl.gz").write_bytes(gzip.compress(packed))
    # A broker that never said that it stopped: its last file is missing.
    seen = [
        line("state", view="broker", namespace="east", state="serving", entity=None),
        *(broker("send", "known"), broker("receive", "known", 9), broker("complete", "known", 9)),
        # The ledger of its sender is missing: it was stored, completed, and never forwarded.
        *(broker("send", "gone"), broker("receive", "gone", 9), broker("complete", "gone", 9)),
        broker("send", "waits"),
    ]
    write_lines(tmp_path, "broker-00000.jsonl", seen)
    with tables_of(spark, tmp_path) as tables:
        _assert_unknown(conservation_report(tables, ALL, None, in_brief=True))
        copies = {"test-00000-copy.jsonl", "test-00000.jsonl.open"}
        assert tables.inspected.refused.keys() == copies
        # A successor of the broker must find what was there by the records.
        [gap] = tables.inspected.gaps
        for messages, is_short in ((0, True), (1, False)):
            gaps = (replace(gap, recovery=Recovery(EPOCH_MS + 60_000, messages)),)
            told = Mock(
                inspected=replace(tables.inspected, gaps=gaps), in_backlog=tables.in_backlog
            )
            assert _is_short(told) == is_short


def _assert_unknown(report: ConservationReport) -> None:
    assert report.verdict is ReportVerdict.UNKNOWN
    [unsent, masked] = report.incomplete
    assert unsent.startswith("1 messages were stored in a backlog queue, as the broker's")
    assert masked.startswith("1 ids were accepted more than once and diverted more often")
    said = "3 ids accepted more than once: each counts as one message"
    assert any(one.startswith(said) for one in conservation_sheet(report).lines)
    assert (report.reused, report.total.accepted, report.total.undecided) == (3, 6, 1)
    assert (report.scope.records, report.total.duplicates) == (29, 0)
    [gap] = report.scope.gaps
    assert (gap.process, gap.is_open) == ("broker", True)
    assert gap.sentence in report.unknown
    assert sum("not read" in one for one in report.scope.remarks) == 2


def test_a_peek_calls_lost_what_the_ledger_knew_before_it_whatever_the_clocks_say(
    spark: SparkSession, tmp_path: Path
) -> None:
    # What a peek cannot find because its id was erased.
    erased = diverted(f"erased:{'0' * 32}")
    write_lines(tmp_path, "p-0.jsonl", [diverted("early", 3_600), erased, sent("a")])
    # After the peek, by a sender whose clock is an hour behind; "early" is by one that is ahead.
    write_lines(tmp_path, "p-1.jsonl", [diverted("late", -3_600)])
    seen, began_ms = spark.createDataFrame([], SIGHTINGS), EPOCH_MS + 60_000
    with batch_tables(spark, tmp_path) as tables:
        awaited = awaited_messages(tables).where("message_id <> 'late'")
        look = BacklogSnapshot(seen, began_ms, awaited=awaited)
        report = conservation_report(tables, ALL, look, in_brief=True)
    fates = {message.message_id: message.fate for message in report.messages}
    assert fates == {"early": "lost", "late": "undecided", erased["message_id"]: "undecided"}
    assert "waiting and lost of 1 erased messages: a peek cannot find them without ids" in (
        report.unknown
    )
