"""Failover windows, downtime, the backlog over time, and the broker's view beside the clients'."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from tests.spark.ledgers import (
    EPOCH_MS,
    LABEL,
    Line,
    assert_rows,
    at_hand,
    came_out,
    completed,
    diverted,
    fates,
    forwarded,
    ledger,
    line,
    received,
    sent,
    twinned,
)
from twinbus.pairing.core.failover import EntityFailover, SendFailed
from twinbus.pairing.observing.recording import CLOSED
from twinbus.pipeline.core.rules import AT_ONCE
from twinbus.pipeline.spark.session import session_for_few
from twinbus.pipeline.tables import availability, reconciliation, schemas
from twinbus.pipeline.tables.records import tallied
from twinbus.status.document import EntityState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.spark

SECOND = EPOCH_MS // 1000


def given(spark: SparkSession, table: list[tuple[Any, ...]], schema: StructType) -> DataFrame:
    return session_for_few(spark).createDataFrame(table, schema).coalesce(1)


def state(value: str, at_s: float, process: str = "p", **fields: Any) -> Line:
    told = {"state": value, "process": process, "pair": "a+b", "error": f"{value} now", **fields}
    return line("state", None, at_s, **told)


def ms(at_s: float) -> int:
    return EPOCH_MS + int(at_s * 1000)


# Four processes; the lines are not in the order of their times.
STATES = [
    state("healthy", 40, "p"),
    state("failed over", 20, "p"),
    state("suspect", 10, "p"),
    # A suspicion that came to nothing, then a window of its own.
    state("suspect", 1, "q"),
    state("healthy", 2, "q"),
    state("suspect", 15, "q"),
    state("failed over", 30, "q", entity="Orders"),
    state("unusable", 35, "q"),
    state("failed over", 45, "q"),
    state("healthy", 50, "q"),
    # Forced: no attempt failed. A second one that no record ends.
    state("failed over", 100, "p", error="forced"),
    state("healthy", 103, "p"),
    state("suspect", 110, "p"),
    state("failed over", 112, "p"),
    # At once, for the failover interval is 0.
    state("failed over", 7, "t", entity="audit", error=AT_ONCE),
    state("healthy", 9, "t", entity="audit"),
    # Suspect and failed over in the same millisecond, another entity.
    state("healthy", 25, "r", entity="news"),
    state("failed over", 20, "r", entity="news"),
    state("suspect", 20, "r", entity="news"),
    # The pair was closed while it was failed over; another of the same process is well, and a
    # suspicion that ended with its pair is none of the next failover.
    state("suspect", 5, "u", entity="mail"),
    state("failed over", 6, "u", entity="mail"),
    state("closed", 16, "u", entity="mail"),
    state("suspect", 20, "u", entity="mail"),
    state("closed", 21, "u", entity="mail"),
    state("failed over", 22, "u", entity="mail", error="forced"),
    state("healthy", 24, "u", entity="mail"),
    # The broker's view and the pair's own news are no states of an entity.
    state("failed over", 60, "s", view="broker"),
    state("failed over", 60, "s", entity=None),
]


WINDOWS = [
    ("a+b", "orders", "p", ms(10), ms(20), ms(40), None, "failed over now", 3),
    ("a+b", "orders", "q", ms(15), ms(30), ms(50), None, "failed over now", 0),
    ("a+b", "orders", "p", None, ms(100), ms(103), None, "forced", 1),
    ("a+b", "orders", "p", ms(110), ms(112), None, None, "failed over now", 1),
    ("a+b", "news", "r", ms(20), ms(20), ms(25), None, "failed over now", 0),
    ("a+b", "audit", "t", ms(7), ms(7), ms(9), None, AT_ONCE, 0),
    ("a+b", "mail", "u", ms(5), ms(6), None, ms(16), "failed over now", 0),
    ("a+b", "mail", "u", None, ms(22), ms(24), None, "forced", 0),
]


def windows_of(records: DataFrame, bucket_s: int = 1) -> DataFrame:
    return availability.failover_windows(
        availability.states(records),
        availability.diversions(tallied(records, bucket_s=bucket_s), bucket_s=bucket_s),
        availability.traffic(tallied(records, bucket_s=bucket_s), bucket_s=bucket_s),
        bucket_s=bucket_s,
    )


def test_windows_of_each_process_whatever_the_order_of_the_lines(spark: SparkSession) -> None:
    records = ledger(
        spark,
        *STATES,
        # One that is in no window: the line of its state is missing.
        diverted("early", 5, process="p", pair="a+b"),
        diverted("a", 20, process="p", pair="a+b"),
        diverted("b", 39.5, process="p", pair="a+b"),
        # Begun in the window and ended after it.
        diverted("c", 40.5, process="p", pair="a+b", entity="ORDERS"),
        diverted("d", 30, process="p", pair="a+b", outcome="failed"),
        diverted("e", 101, process="p", pair="a+b"),
        diverted("f", 500, process="p", pair="a+b"),
        # Another pair of the same process.
        diverted("g", 21, process="p", pair="c+d"),
    )
    assert_rows(windows_of(records), WINDOWS, schemas.WINDOWS)


def test_a_window_ends_with_its_process_once_the_entity_is_well(spark: SparkSession) -> None:
    silence = availability.SILENCE_S
    mine: dict[str, Any] = {"pair": "a+b", "entity": "orders"}
    records = ledger(
        spark,
        # Killed: its last signs are a divert and a ping.
        *(state("suspect", 10, "a"), state("failed over", 20, "a")),
        diverted("1", 25, process="a", **mine),
        line("ping", None, 80, process="a", cause="ping", outcome="failed", **mine),
        # Another process fails over too, and sees it return when the silence is long enough.
        *(state("suspect", 30, "b"), state("failed over", 40, "b")),
        state("healthy", 80 + silence + 2, "b"),
        # One that is still failed over: nothing was sent for so long after its last ping.
        state("failed over", 10, "c", entity="news", error="forced"),
        line("ping", None, 1_000, process="c", cause="ping", pair="a+b", entity="news"),
        sent("2", 1_000 + silence, process="d", pair="a+b", entity="News"),
        # Killed; the process that came after it never failed over, and sends.
        state("failed over", 10, "e", entity="mail", error="forced"),
        sent("3", 10 + silence + 2, process="f", pair="a+b", entity="mail"),
    )
    expected = [
        ("a+b", "orders", "a", ms(10), ms(20), None, ms(80), "failed over now", 1),
        ("a+b", "orders", "b", ms(30), ms(40), ms(82 + silence), None, "failed over now", 0),
        ("a+b", "news", "c", None, ms(10), None, None, "forced", 0),
        ("a+b", "mail", "e", None, ms(10), None, ms(10), "forced", 0),
    ]
    found = at_hand(windows_of(records))
    assert_rows(found, expected, schemas.WINDOWS)
    open_now = {row["entity"]: row["open"] for row in _downtimes(found)}
    assert open_now == {"orders": False, "news": True, "mail": False}


def _downtimes(found: DataFrame) -> list[Any]:
    return availability.downtimes(found, last_ms=ms(10_000)).collect()


def test_the_words_of_states_and_of_a_failover_at_once_are_those_of_the_machine() -> None:
    entity = EntityFailover(failover_interval_s=0, ping_interval_s=60)
    entity.handle(SendFailed(counts=True), 1.0)
    assert (entity.state, entity.reason) == (EntityState.FAILED_OVER, AT_ONCE)
    assert set(availability.STATES) == {state.value for state in EntityState}
    assert availability.CLOSED == CLOSED


def test_downtime_is_the_union_over_processes_and_says_what_is_open(spark: SparkSession) -> None:
    table = given(spark, WINDOWS, schemas.WINDOWS)
    found = availability.downtimes(table, last_ms=ms(120))
    # orders: 20 to 50 (two windows that overlap), 100 to 103, and 112 to the end.
    expected = [
        ("a", "orders", 3, 30_000 + 3_000 + 8_000, True),
        ("a", "news", 1, 5_000, False),
        ("a", "audit", 1, 2_000, False),
        ("a", "mail", 2, 10_000 + 2_000, False),
    ]
    assert_rows(found, expected, schemas.DOWNTIMES)


def test_downtime_outside_what_is_asked_for_is_not_counted(spark: SparkSession) -> None:
    table = given(spark, WINDOWS, schemas.WINDOWS).where("entity = 'orders'")

    def failed_over_ms(since_s: float | None, until_s: float | None) -> list[tuple[int, int]]:
        asked = {
            "since_ms": None if since_s is None else ms(since_s),
            "until_ms": None if until_s is None else ms(until_s),
        }
        touched = table.where(f"coalesce(recovered_ms, {ms(10_000)}) > {asked['since_ms'] or 0}")
        touched = touched.where(f"failed_over_ms < {asked['until_ms'] or ms(10_000)}")
        rows = availability.downtimes(touched, last_ms=ms(120), **asked).collect()
        return [(row["failovers"], row["failed_over_ms"]) for row in rows]

    # 20 to 50, 100 to 103, and 112 to the last record.
    assert failed_over_ms(45, None) == [(3, 5_000 + 3_000 + 8_000)]
    assert failed_over_ms(None, 25) == [(1, 5_000)]
    assert failed_over_ms(35, 101) == [(2, 15_000 + 1_000)]
    assert failed_over_ms(115, 118) == [(1, 3_000)]
    assert failed_over_ms(115, 500) == [(1, 5_000)]
    assert failed_over_ms(130, None) == [(1, 0)]


def test_percentiles_are_times_that_occurred(spark: SparkSession) -> None:
    table = given(spark, WINDOWS, schemas.WINDOWS)
    found = availability.percentiles(table)
    # detect: 0, 0, 1, 2, 10, 15 s; recover: 2, 2, 3, 5, 20, 20 s.
    assert sorted(tuple(row) for row in found.collect()) == [
        ("detect", 6, 1_000, 15_000, 15_000, 15_000),
        ("recover", 6, 3_000, 20_000, 20_000, 20_000),
    ]
    of_news = availability.percentiles(table.where("entity = 'news'"))
    assert sorted(tuple(row) for row in of_news.collect()) == [
        ("detect", 1, 0, 0, 0, 0),
        ("recover", 1, 5_000, 5_000, 5_000, 5_000),
    ]


def test_the_backlog_over_time_its_depth_and_its_oldest_age(spark: SparkSession) -> None:
    records = ledger(
        spark,
        # Left before it came, as two clocks tell it: it stayed for no time.
        *(diverted("skewed", 2), forwarded("skewed", 1), completed("skewed", 1)),
        diverted("a", 0),
        diverted("b", 4),
        diverted("c", 4.9),
        diverted("other", 5, entity="news"),
        *(came_out("a", 9), forwarded("a", 9), completed("a", 9.5)),
        *(came_out("b", 12), forwarded("b", 12), completed("b", 12)),
    )
    stays = at_hand(availability.stays(fates(records), bucket_s=1))
    orders = stays.where("destination = 'orders'")
    points = [
        # Before and at each change: depth, and the age of the oldest at the end of the second.
        (0, 1, 1),
        (1, 1, 2),
        (2, 1, 3),
        (3, 1, 4),
        (4, 3, 5),
        (8, 3, 9),
        (9, 2, 6),
        (11, 2, 8),
        (12, 1, 9),
    ]
    found = availability.backlog_over_time(orders, bucket_s=1).orderBy("at_s").collect()
    assert [tuple(row) for row in found] == [(SECOND + at, *rest) for at, *rest in points]
    whole = availability.backlog_over_time(stays, bucket_s=10).orderBy("at_s").collect()
    assert [tuple(row) for row in whole] == [(SECOND, 3, 10), (SECOND + 10, 2, 20)]


def test_a_drain_is_as_long_as_something_left(spark: SparkSession) -> None:
    left = [
        (LABEL, "orders", SECOND, SECOND + 10, 1, 10_000),
        (LABEL, "orders", SECOND + 1, SECOND + 10, 1, 9_200),
        (LABEL, "orders", SECOND, SECOND + 11, 1, 11_000),
        (LABEL, "orders", SECOND, SECOND + 30, 1, 30_000),
        (LABEL, "orders", SECOND, None, 5, 0),
    ]
    for rows_left, expected in ((left, (4, 6)), (left[-1:], (0, 0))):
        found = availability.drained(given(spark, rows_left, schemas.STAYS), bucket_s=2)
        assert tuple(found.collect()[0]) == expected


def test_traffic_and_raised_sends_by_time(spark: SparkSession) -> None:
    records = ledger(
        spark,
        sent("a", 1),
        sent("b", 2, outcome="failed"),
        sent("b", 3, outcome="unknown"),
        diverted("b", 65),
        twinned("t", 65),
        sent("lost-to-caller", 70, outcome="failed"),
        *(came_out("b", 70), forwarded("b", 71), completed("b", 71)),
        received("a", 5, entity="orders/subscriptions/s"),
        completed("a", 5, cause="consumer"),
        line("backlog_receive", None, 4, entity=None, cause="poll"),
        sent("a", 1, view="broker"),
    )
    minute = SECOND - SECOND % 60
    found = availability.traffic(tallied(records, bucket_s=60), bucket_s=60)
    expected = [
        (minute, LABEL, "orders", 1, 0, 0, 1, 1, 0, 0, 0, 1, 0),
        (minute, LABEL, "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 1),
        (minute + 60, LABEL, "orders", 0, 1, 1, 1, 0, 1, 1, 1, 0, 0),
    ]
    assert_rows(found, expected, schemas.TRAFFIC)
    errors = availability.raised(fates(records), bucket_s=60)
    assert [tuple(row) for row in errors.collect()] == [(minute + 60, LABEL, "orders", 1)]


QUEUE = "contoso/x-servicebus-transfer/3"
PRIMARY: dict[str, Any] = {"namespace": "contoso"}
SECONDARY: dict[str, Any] = {"namespace": "east", "backlog_queue": QUEUE}


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
