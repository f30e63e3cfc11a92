"""The clients' view beside the broker's, against rows worked out by hand."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tests.spark.ledgers import (
    EPOCH_MS,
    LABEL,
    Line,
    diverted,
    forwarded,
    line,
    received,
    rows,
    sent,
)
from twinbus.pipeline.tables import reconciliation, schemas
from twinbus.pipeline.tables.records import tallied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

QUEUE = "contoso/x-servicebus-transfer/3"
PRIMARY: dict[str, Any] = {"namespace": "contoso"}
SECONDARY: dict[str, Any] = {"namespace": "east", "backlog_queue": QUEUE}


def ledger(spark: SparkSession, *lines: Line) -> DataFrame:
    return spark.createDataFrame(rows(list(lines)), schemas.LEDGER)


def broker(operation: str, message_id: str | None, entity: str = "orders", **fields: Any) -> Line:
    namespace = "east" if "transfer" in entity else "contoso"
    told = {"namespace": namespace, "view": "broker", "cause": None, **fields}
    return line(operation, message_id, entity=entity, **told)


LINES = [
    # Agreed, from the sender to the consumer, by the backlog. The broker's clock is a minute ahead.
    diverted("m", 1, **SECONDARY),
    broker("send", "m", QUEUE, at_s=61),
    line("backlog_receive", "m", 2, cause="syphon", **SECONDARY),
    broker("receive", "m", QUEUE, at_s=62),
    forwarded("m", 3, **PRIMARY, backlog_queue=QUEUE),
    broker("send", "m", "Orders", at_s=63),
    line("complete", "m", 4, cause="syphon", **SECONDARY),
    broker("complete", "m", QUEUE, at_s=64),
    received("m", 5, **PRIMARY),
    broker("receive", "m", at_s=65),
    line("complete", "m", 6, cause="consumer", **PRIMARY),
    broker("complete", "m", at_s=66),
    # Acknowledged to a client, and not in the broker's view; and the other way round.
    sent("phantom", **PRIMARY),
    broker("send", "stranger"),
    # Without an answer: carried out, not carried out, and done again with an answer.
    *(sent("done", outcome="unknown", **PRIMARY), broker("send", "done")),
    sent("not-done", outcome="unknown", **PRIMARY),
    *(sent("again", outcome="unknown", **PRIMARY), sent("again", **PRIMARY)),
    *(broker("send", "again"), broker("send", "again")),
    # Handed out a second time: the first receiver closed with it in hand.
    broker("receive", "m", at_s=64),
    # Refused, as both say.
    *(sent("refused", outcome="failed", **PRIMARY), broker("send", "refused", outcome="failed")),
    # About no message, or what the broker does by itself.
    line("backlog_receive", None, cause="poll", entity=None, **SECONDARY),
    *(line("ping", None, cause="ping", **PRIMARY), broker("ping", None)),
    broker("dead_letter", "old", QUEUE, error="TTLExpiredException: over"),
    broker("dead_letter", "poison", QUEUE, error="MaxDeliveryCountExceeded"),
    broker("forward", "relayed", "archive"),
    broker("expire", "gone", QUEUE),
    broker("state", None),
]


@pytest.mark.parametrize("renamed", [False, True])
def test_both_views_are_counted_where_the_broker_says_it_was(
    spark: SparkSession, renamed: bool
) -> None:
    # The two ends may have other names for a namespace.
    names = {"namespace": "localhost-5671"} if renamed else {}
    records = ledger(spark, *(one | names if one.get("view") == "broker" else one for one in LINES))
    differing = reconciliation.disagreements(records)
    assert Counter(map(tuple, differing.collect())) == Counter(
        [
            (LABEL, "orders", "send", "phantom", 1, 0, "only_clients"),
            (LABEL, "orders", "send", "stranger", -1, 0, "only_broker"),
            (LABEL, "orders", "send", "done", -1, 1, "ambiguous_done"),
            (LABEL, "orders", "send", "not-done", 0, 1, "ambiguous_not_done"),
            (LABEL, "orders", "send", "again", -1, 1, "ambiguous_done"),
            (LABEL, "orders", "receive", "m", -1, 0, "given_back"),
        ]
    )
    views = reconciliation.views(tallied(records, bucket_s=60))
    agreed = reconciliation.agreements(views, differing)
    assert agreed.columns[5:] == [*reconciliation.KINDS, "explained", "found"]
    assert Counter(map(tuple, agreed.collect())) == Counter(
        [
            (LABEL, "orders", "send", 3, 5, 1, 1, 2, 1, 0, 0, 2, 2),
            (LABEL, "orders", "receive", 1, 2, 0, 0, 0, 0, 1, 0, 1, 1),
            (LABEL, "orders", "complete", 1, 1, 0, 0, 0, 0, 0, 0, 0, 0),
            (LABEL, QUEUE, "send", 1, 1, 0, 0, 0, 0, 0, 0, 0, 0),
            (LABEL, QUEUE, "receive", 1, 1, 0, 0, 0, 0, 0, 0, 0, 0),
            (LABEL, QUEUE, "complete", 1, 1, 0, 0, 0, 0, 0, 0, 0, 0),
        ]
    )


def test_a_call_at_midnight_belongs_to_the_day_of_its_first_record(spark: SparkSession) -> None:
    records = ledger(
        spark, broker("send", "late", at_s=86_399.99), sent("late", 86_400.01, **PRIMARY)
    )
    first_day = F.col("first_ms") < F.lit(EPOCH_MS + 86_400_000)
    for began in (first_day, ~first_day):
        assert reconciliation.disagreements(records, began=began).count() == 0


def test_what_is_just_done_may_not_be_written_yet(spark: SparkSession) -> None:
    records = ledger(
        spark,
        *(broker("send", "old", at_s=1), broker("send", "young", at_s=9)),
        sent("unknown to the broker", 9, **PRIMARY),
    )
    newest_ms = records.agg(F.max("at_ms")).collect()[0][0]
    found = reconciliation.disagreements(records, newest_ms=newest_ms).collect()
    assert {(row["message_id"], row["kind"]) for row in found} == {
        ("old", "only_broker"),
        ("young", "too_young"),
        ("unknown to the broker", "only_clients"),
    }


def test_names_are_bounded_for_each_kind(spark: SparkSession) -> None:
    records = ledger(
        spark,
        *(sent(f"p{number}", **PRIMARY) for number in range(5)),
        *(broker("send", f"s{number}") for number in range(3)),
    )
    names = reconciliation.named(reconciliation.disagreements(records), 2)
    assert sorted(row["message_id"] for row in names.collect()) == ["p0", "p1", "s0", "s1"]
