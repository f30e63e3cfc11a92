"""The journeys of messages: facts that merge in any order, and what is made of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.ledgers import (
    EPOCH_MS,
    LABEL,
    Line,
    came_out,
    completed,
    diverted,
    forwarded,
    line,
    moved,
    received,
    rows,
    sent,
)
from twinbus.pipeline.spark.session import session_for_few
from twinbus.pipeline.tables.journeys import judged, merged, partial_journeys, with_peek
from twinbus.pipeline.tables.records import may_share_messages, receivers_of, tallied
from twinbus.pipeline.tables.schemas import FATES, JOURNEYS, LEDGER, SIGHTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SUBSCRIPTION = "news/Subscriptions/"

LINES: list[Line] = [
    *[sent("direct", 1), received("direct", 2)],
    *moved("moved", 3, out_s=9),
    # The syphon's clock is behind that of the sender: it leaves before it came.
    *[diverted("skewed", 20), *moved("skewed", 20, out_s=15)[1:]],
    *[sent("unsure", 4, outcome="unknown"), sent("unsure", 5, outcome="failed")],
    *[diverted("unsure", 6), line("defer", "unsure", 7, cause="syphon")],
    # One message, two subscriptions: no duplicate. A third receipt is one.
    sent("fan", 1, entity="News"),
    *[received("fan", 2, entity=SUBSCRIPTION + "a"), received("fan", 4, entity=SUBSCRIPTION + "b")],
    received("fan", 3, entity=SUBSCRIPTION + "B"),
    # The broker's view: of one without an answer, of one that ran out of time, of one it refused.
    *[diverted("kept", 1), line("send", "kept", 1, view="broker")],
    *[diverted("late", 1), line("expire", "late", 60, view="broker")],
    *[diverted("poison", 1), line("dead_letter", "poison", 5, view="broker", error="bad")],
    *[diverted("gone", 1), came_out("gone", 2), completed("gone", 3)],
    # Dead letters: one is there; the other was put back and then completed without a forward.
    *[diverted("aside", 1), line("dead_letter", "aside", 2, cause="syphon")],
    *[diverted("back", 1), line("dead_letter", "back", 2, cause="syphon"), completed("back", 9)],
    # What a consumer settles is not what the syphon settles.
    *[diverted("mine", 1), completed("mine", 2, cause="consumer")],
    *[sent("nobody", entity=None), line("send", None)],
]


LABELLED = [one for one in LINES if one.get("view") != "broker"]


@pytest.fixture
def quick(spark: SparkSession) -> SparkSession:
    return session_for_few(spark)


def journeys_of(session: SparkSession, lines: list[Line]) -> DataFrame:
    records = session.createDataFrame(rows(lines), LEDGER).coalesce(1)
    return partial_journeys(records, one_task=True)


def by_id(table: DataFrame, *names: str) -> dict[str, Any]:
    return {
        row["message_id"]: row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)
        for row in table.collect()
    }


def test_every_message_has_the_facts_and_the_fate_that_its_lines_tell(quick: SparkSession) -> None:
    journeys = journeys_of(quick, LINES)
    assert [(field.name, field.dataType) for field in journeys.schema] == [
        (field.name, field.dataType) for field in JOURNEYS
    ]
    facts = {(row["message_id"], row["receiver"]): row for row in journeys.collect()}
    unsure = facts["unsure", ""].asDict()
    told = [name for name, value in unsure.items() if value is True]
    assert told == ["tried", "diverted", "ambiguous", "deferred", "labelled"]
    assert (unsure["failed_sends"], unsure["receipts"], unsure["size_bytes"]) == (1, 0, 150)
    times = {
        name: value - EPOCH_MS for name, value in unsure.items() if name[-3:] == "_ms" and value
    }
    assert times == {
        "first_ms": 4_000,
        "last_ms": 7_000,
        "accepted_ms": 6_000,
        "diverted_ms": 6_000,
        "tried_ms": 6_000,
    }
    subscriptions = {key[1]: row["receipts"] for key, row in facts.items() if key[0] == "fan"}
    assert subscriptions == {"": 0, "news/subscriptions/a": 1, "news/subscriptions/b": 2}
    fates = judged(journeys)
    assert fates.columns == FATES.fieldNames()
    found = by_id(fates, "fate", "times", "repeats", "repeated_at")
    assert found == {
        "direct": ("delivered", 1, 0, None),
        "moved": ("delivered", 0, 0, None),
        "skewed": ("delivered", 0, 0, None),
        "unsure": ("undecided", 0, 0, None),
        "fan": ("delivered", 2, 1, "news/subscriptions/b"),
        "kept": ("delivered", 0, 0, None),
        "late": ("expired", 0, 0, None),
        "poison": ("dead_lettered", 0, 0, None),
        "gone": ("lost", 0, 0, None),
        "aside": ("dead_lettered", 0, 0, None),
        "back": ("undecided", 0, 0, None),
        "mine": ("undecided", 0, 0, None),
    }
    seen = [
        *[("orders", "late", "dead_lettered", LABEL), ("Orders", "unsure", "waiting", "Contoso")],
        # A copy of each: it still waits. And one of another queue's message.
        *[("orders", "poison", place, LABEL) for place in ("dead_lettered", "waiting")],
        *[("other", "mine", "waiting", LABEL), ("orders", "mine", "waiting", "other")],
    ]
    looked = by_id(with_peek(fates, quick.createDataFrame(seen, SIGHTINGS)), "fate")
    assert looked == {
        **{name: fate[0] for name, fate in found.items()},
        "unsure": "waiting",
        "poison": "waiting",
        "back": "lost",
        "mine": "lost",
    }


def test_nothing_leaves_the_backlog_before_it_came(quick: SparkSession) -> None:
    from twinbus.pipeline.tables.availability import backlog_over_time, stays

    lines = [diverted("skewed", 20), *moved("skewed", 20, out_s=15)[1:], diverted("other", 16)]
    found = stays(judged(journeys_of(quick, lines)), bucket_s=1)
    depth = backlog_over_time(found, bucket_s=1).select("at_s", "depth")
    second = EPOCH_MS // 1000
    # A point at each change, and one in the second before it.
    assert sorted(map(tuple, depth.collect())) == [(second + at, 1) for at in (16, 19, 20)]


def test_a_receipt_tells_that_a_message_left_the_backlog(quick: SparkSession) -> None:
    lines = [
        *[diverted("killed", 1), came_out("killed", 5), received("killed", 9)],
        *[*moved("told", 1, out_s=5), received("told", 9)],
        # The primary may have it too, and the consumer that copy.
        *[sent("unsure", 1, outcome="unknown"), diverted("unsure", 2), received("unsure", 9)],
        *[sent("twice", 1), diverted("twice", 2), received("twice", 9)],
        diverted("waits", 1),
    ]
    left = by_id(judged(journeys_of(quick, lines)), "left_ms")
    assert {name: at_ms and (at_ms - EPOCH_MS) // 1000 for name, at_ms in left.items()} == {
        "killed": 9,
        "told": 5,
        "unsure": None,
        "twice": None,
        "waits": None,
    }


def test_facts_merge_in_any_order_and_any_lots(quick: SparkSession) -> None:
    chance = random.Random(6)
    whole = sorted(journeys_of(quick, LINES).collect())
    for lots in (2, 5):
        lines = chance.sample(LINES, len(LINES))
        parts = [journeys_of(quick, lines[lot::lots]) for lot in range(lots)]
        together = parts[0]
        for part in parts[1:]:
            together = together.unionAll(part)
        assert sorted(merged(together.coalesce(1), one_task=True).collect()) == whole


def test_without_a_fan_out_a_message_is_its_only_row(quick: SparkSession) -> None:
    lines = [one for one in LABELLED if "/" not in (one["entity"] or "")]
    lines += [received("twice", 1), received("twice", 2), forwarded("twice", 1)]
    journeys = journeys_of(quick, lines)
    folded, alone = judged(journeys), judged(journeys, receivers={}, all_labelled=True)
    assert sorted(map(str, folded.collect())) == sorted(map(str, alone.collect()))


def test_messages_are_the_same_whether_receivers_are_known_or_not(quick: SparkSession) -> None:
    at = ("events/subscriptions/a", "events/subscriptions/B")
    lines = [
        *LABELLED,
        *(sent(name, 1, entity="Events") for name in ("tie", "once", "most", "queue")),
        *(received("tie", 2, entity=entity) for entity in (*at, *at)),
        *(received("once", 2, entity=entity) for entity in at),
        *(received("most", 2, entity=entity) for entity in (at[0], *at, at[0])),
        *(received("queue", 2, entity="events") for _ in range(2)),
        received("failed", 2, entity="other/subscriptions/c", outcome="failed"),
    ]
    records = quick.createDataFrame(rows(lines), LEDGER).coalesce(1)
    receivers = receivers_of(tallied(records, bucket_s=60))
    assert {"events/subscriptions/a", "events/subscriptions/b"} <= receivers.keys()
    assert "other/subscriptions/c" not in receivers
    journeys = partial_journeys(records, one_task=True)
    assert not may_share_messages(tallied(records, bucket_s=60))
    known, unknown = judged(journeys, receivers=receivers, all_labelled=True), judged(journeys)
    assert known.dtypes == unknown.dtypes
    assert sorted(map(str, known.collect())) == sorted(map(str, unknown.collect()))
    found = by_id(known, "times", "repeated_at")
    assert found["tie"] == (2, "events/subscriptions/b")
    assert found["most"] == (3, "events/subscriptions/a")
    assert found["queue"] == (2, "events")
    assert found["once"] == (1, None)
