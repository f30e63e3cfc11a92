"""Lines of a ledger: which are records, and why the others are set aside."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.spark.ledgers import sent
from twinbus.ledger import LedgerError
from twinbus.pipeline.tables.bronze import read_ledger, reason, records_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

GOOD = [sent("a"), {**sent("b"), "news": "a field of a later minor version"}]

BAD = {
    "torn": [
        *[json.dumps(sent("a"), separators=(",", ":"))[:end] for end in (1, 4, 5, 30, -1)],
        # Cut inside of an id that has a brace.
        '{"v":1,"message_id":"}',
    ],
    "newer": [
        json.dumps({**sent("a"), "v": 2}),
        # In which a field of ours has another type.
        json.dumps({**sent("a"), "v": 3, "at_ms": "soon"}),
    ],
    "foreign": [
        *["not json", '["a"]', '"text"', "7", "{}", '{"v":0}', '{"v":"x"}', "\x00\x01"],
        json.dumps({**sent("a"), "at_ms": "soon"}),
        json.dumps({**sent("a"), "process": None}),
        # Numbers that no sum would survive.
        json.dumps({**sent("a"), "at_ms": -1}),
        json.dumps({**sent("a"), "at_ms": 2**62}),
        # The last moment that has a date: its minute ends in the year 10000.
        json.dumps({**sent("a"), "at_ms": 253_402_300_799_999}),
        json.dumps({**sent("a"), "size_bytes": 2**62}),
        json.dumps({**sent("a"), "size_bytes": -5}),
    ],
}


def test_a_bad_line_costs_itself_and_says_why(spark: SparkSession, tmp_path: Path) -> None:
    bad = [line for lines in BAD.values() for line in lines]
    good = [json.dumps(line) for line in GOOD]
    (tmp_path / "p-0.jsonl").write_text("\n".join([good[0], *bad, good[1], ""]))
    # Still written, by a process that was killed inside of a line.
    (tmp_path / "p-1.jsonl.open").write_text(good[0] + "\n" + good[0][:-9])
    (tmp_path / "p-2.jsonl.other").write_text("not to be read")
    lines = read_ledger(spark, tmp_path).cache()
    found = Counter(row[0] for row in lines.select(reason()).collect())
    assert found == {
        None: 3,
        "torn": len(BAD["torn"]) + 1,
        "newer": len(BAD["newer"]),
        "foreign": len(BAD["foreign"]),
    }
    assert sorted(row["message_id"] for row in records_of(lines).collect()) == ["a", "a", "b"]
    lines.unpersist()


def test_no_ledger_at_a_url_is_one_clear_line(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger at file:"):
        read_ledger(spark, f"file://{tmp_path}/nowhere")
