"""Twins and receivers: fates, copies, charges and receive gaps of messages that went to a twin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.kept import write_lines
from tests.spark.ledgers import (
    EPOCH_MS,
    LABEL,
    TWIN,
    Line,
    at_hand,
    brought_home,
    completed,
    diverted,
    fates,
    ledger,
    line,
    moved,
    received,
    second_copy,
    sent,
    twinned,
)
from twinbus.pipeline.core.rules import FATES_OF_ACCEPTED
from twinbus.pipeline.reports.availability import availability_report
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest, ReportVerdict, Sends
from twinbus.pipeline.reports.ledger_tables import batch_tables
from twinbus.pipeline.spark.session import session_for_few
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.tables import availability, charges, conservation, journeys, reconciliation
from twinbus.pipeline.tables.receive_gaps import OUTAGES, receive_gaps
from twinbus.pipeline.tables.records import tallied
from twinbus.pipeline.tables.schemas import SIGHTINGS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DAY = date(2025, 10, 9)
EAST: Line = {"side": "secondary", "namespace": "east"}
"""What a consumer records of a message that it received from the twin."""


def stored(operation: str, message_id: str, namespace: str = "east", **fields: Any) -> Line:
    """A line of the broker's view: it knows namespaces and entities, and no pair."""
    judged = {"view": "broker", "cause": None, "namespace": namespace, **fields}
    return line(operation, message_id, **judged)


def by_id(table: DataFrame, *names: str) -> dict[str, Any]:
    rows = table.where("destination = 'orders'").collect()
    return {
        row["message_id"]: row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)
        for row in rows
    }


def test_a_message_in_a_twin_is_delivered_and_never_in_the_backlog(spark: SparkSession) -> None:
    records = ledger(
        spark,
        twinned("there", 1),
        *(twinned("received", 1), received("received", 2, **EAST)),
        *(twinned("home", 1, backlog_queue="Orders"), *brought_home("home", 9)),
        # Taken out by the syphon, and never forwarded; or dead-lettered there.
        *(twinned("dropped", 1), completed("dropped", 2, **TWIN)),
        *(twinned("aside", 1), line("dead_letter", "aside", 2, cause="syphon", **TWIN)),
        # The twin could not take it: the backlog did.
        *(twinned("full", 1, outcome="failed"), diverted("full", 2)),
        twinned("refused", 1, outcome="failed"),
        twinned("topic", 1, entity="news", backlog_queue="news"),
    )
    judged = at_hand(fates(records))
    assert by_id(judged, "fate", "twinned", "at_twin") == {
        "there": ("delivered", True, True),
        "received": ("delivered", True, False),
        "home": ("delivered", True, False),
        "dropped": ("lost", True, False),
        "aside": ("dead_lettered", True, False),
        "full": ("undecided", False, False),
        "refused": (None, False, False),
    }
    stays = availability.stays(judged, bucket_s=1).collect()
    assert [(row["destination"], row["messages"]) for row in stays] == [("orders", 1)]
    assert not conservation.ages(judged).collect()
    assert not conservation.skews(judged).collect()
    # No peek looks into a twin, so it finds nothing missing there.
    nothing = session_for_few(spark).createDataFrame([], SIGHTINGS)
    looked = by_id(journeys.with_peek(judged, nothing), "fate")
    assert looked == {**by_id(judged, "fate"), "full": "lost"}
    sums = {row["destination"]: row for row in conservation.fate_sums(judged).collect()}
    for row in sums.values():
        assert row["accepted"] == sum(row[fate] for fate in FATES_OF_ACCEPTED)
    orders = sums["orders"]
    assert (orders["accepted"], orders["twinned"], orders["at_twin"]) == (6, 5, 1)
    assert (orders["diverted"], orders["moved_unsent"], orders["masked"]) == (1, 0, 0)
    assert sums["news"]["at_twin"] == 1


def test_what_a_syphon_takes_out_of_a_twin_hides_no_loss(spark: SparkSession) -> None:
    records = ledger(
        spark,
        # One of the two messages with this id was completed without a forward.
        *(twinned("again", 1), *brought_home("again", 2)),
        *(twinned("again", 3), completed("again", 4, **TWIN)),
        # One waits in the backlog behind one that came home from the twin.
        *(diverted("behind", 1), twinned("behind", 2), *brought_home("behind", 3)),
        # No line says that it was accepted.
        *brought_home("unsent", 5),
    )
    judged = at_hand(fates(records))
    [row] = conservation.fate_sums(judged).collect()
    assert (row["reused"], row["masked"], row["moved_unsent"]) == (2, 2, 1)


def test_the_broker_sees_both_namespaces_and_a_message_that_came_home_is_no_duplicate(
    spark: SparkSession,
) -> None:
    records = ledger(
        spark,
        *(twinned("home", 1), stored("send", "home"), *brought_home("home", 9)),
        *(stored("receive", "home"), stored("complete", "home"), stored("send", "home", LABEL)),
        # Received from the twin, by a consumer without a ledger.
        *(twinned("gone", 1), stored("send", "gone"), stored("receive", "gone")),
        stored("complete", "gone"),
        *(twinned("there", 1), stored("send", "there")),
        # The syphon completed the only copy; then one of two.
        *(twinned("lost", 1), stored("send", "lost"), stored("complete", "lost")),
        completed("lost", 2, **TWIN),
        *(sent("one-left", 1, outcome="unknown"), stored("send", "one-left", LABEL)),
        *(twinned("one-left", 1), stored("send", "one-left")),
        *(completed("one-left", 2, **TWIN), stored("complete", "one-left")),
        # The primary has it, which the sender did not know: two copies.
        *(sent("both", 1, outcome="unknown"), stored("send", "both", LABEL)),
        *(twinned("both", 2), stored("send", "both")),
    )
    judged = at_hand(fates(records))
    assert by_id(judged, "primary_label", "fate", "at_twin", "copies") == {
        "home": (LABEL, "delivered", False, 1),
        "gone": (LABEL, "delivered", False, 1),
        "there": (LABEL, "delivered", True, 1),
        "lost": (LABEL, "lost", False, 0),
        "one-left": (LABEL, "delivered", False, 1),
        "both": (LABEL, "delivered", True, 2),
    }
    named = conservation.named_duplicates(judged).select("message_id", "times", "window")
    assert [tuple(row) for row in named.collect()] == [("both", 2, "twin")]


def test_a_second_copy_is_counted_apart_and_is_not_handed_out(spark: SparkSession) -> None:
    unanswered: Line = {"outcome": "unknown"}
    topic = "news/Subscriptions/"
    news: Line = {"entity": "news"}
    records = ledger(
        spark,
        # The twin's copy was handed out, and that of the primary was not.
        *(sent("unseen", 1, **unanswered), twinned("unseen", 2), received("unseen", 3, **EAST)),
        *(stored("send", "unseen", LABEL), stored("send", "unseen")),
        *second_copy("unseen", 9, namespace=LABEL),
        # Another process received the other copy: it cannot know.
        *(sent("twice", 1, **unanswered), twinned("twice", 2), received("twice", 3, **EAST)),
        received("twice", 9),
        # Its completion had no answer: it came again, and was again not handed out.
        *(sent("stubborn", 1, **unanswered), twinned("stubborn", 2), received("stubborn", 3)),
        *second_copy("stubborn", 9, outcome="unknown"),
        *second_copy("stubborn", 40),
        # Given back, deferred and then completed; its lock lost once; not explained.
        *(sent("back", 1), received("back", 2), line("abandon", "back", 3, cause="consumer")),
        *(received("back", 4), line("defer", "back", 5, cause="consumer"), received("back", 6)),
        # Received and deleted: there is no completion.
        *(sent("deleted", 1, **unanswered), twinned("deleted", 2)),
        *(received("deleted", 3, **EAST, state="deleted"),),
        received("deleted", 4, state="second_copy"),
        *(sent("locked", 1), received("locked", 2), received("locked", 70)),
        completed("locked", 60, cause="consumer", outcome="failed", error="message-lock-lost"),
        *(sent("odd", 1), received("odd", 2), received("odd", 3)),
        # One subscription completed its second copy, the other handed out both.
        *(sent("fan", 1, **unanswered, **news), twinned("fan", 2, **news, backlog_queue="news")),
        received("fan", 3, entity=topic + "a"),
        *second_copy("fan", 4, entity=topic + "a"),
        *(received("fan", 3, entity=topic + "b"), received("fan", 4, entity=topic + "b")),
    )
    judged = at_hand(fates(records))
    assert by_id(judged, "repeats", "second_copies", "redeliveries", "copies") == {
        "unseen": (0, 1, 0, 1),
        "twice": (1, 0, 0, 0),
        "stubborn": (0, 2, 0, 0),
        "back": (0, 0, 2, 0),
        "deleted": (0, 1, 0, 0),
        "locked": (1, 0, 0, 0),
        "odd": (1, 0, 0, 0),
    }
    named = conservation.named_duplicates(judged).select("message_id", "times", "window")
    assert {row[0]: tuple(row[1:]) for row in named.collect()} == {
        "twice": (2, "twin"),
        "locked": (2, "redelivered"),
        "odd": (2, "unexplained"),
        "fan": (2, "twin"),
    }
    sums = {row["destination"]: row for row in conservation.fate_sums(judged).collect()}
    # A message that came several times is received once.
    orders = sums["orders"]
    assert (orders["received"], orders["second_copies"], orders["redeliveries"]) == (7, 4, 2)


def test_a_line_of_the_secondary_that_names_no_pair_belongs_to_the_message_that_has_one(
    spark: SparkSession,
) -> None:
    nameless: Line = {"pair": None}
    records = ledger(
        spark,
        *(twinned("a", 1), received("a", 2, **EAST, **nameless)),
        *(twinned("b", 1), *({**one, **nameless} for one in brought_home("b", 2))),
    )
    assert by_id(fates(records), "primary_label", "received", "twin_forwards", "twin_ended") == {
        "a": (LABEL, True, 0, 0),
        "b": (LABEL, False, 1, 1),
    }


def test_both_views_agree_on_a_message_that_a_twin_and_the_primary_had(spark: SparkSession) -> None:
    records = ledger(
        spark,
        *(twinned("home", 1), stored("send", "home"), *brought_home("home", 2)),
        *(stored("receive", "home"), stored("send", "home", LABEL), stored("complete", "home")),
        *(received("home", 3, namespace=LABEL), stored("receive", "home", LABEL)),
        *(twinned("there", 1), stored("send", "there"), received("there", 2, **EAST)),
        stored("receive", "there"),
        # What a consumer gives back is not in the broker's view.
        line("abandon", "there", 3, cause="consumer", **EAST),
        *(sent("deleted", 1, namespace=LABEL), stored("send", "deleted", LABEL)),
        received("deleted", 2, namespace=LABEL, state="deleted"),
        *(stored("receive", "deleted", LABEL), stored("complete", "deleted", LABEL)),
        # The twin acknowledged it, and the broker of the secondary does not know it.
        twinned("phantom", 1),
    )
    differing = at_hand(reconciliation.disagreements(records))
    found = differing.select("place", "message_id", "kind").collect()
    assert [tuple(row) for row in found] == [("orders", "phantom", "only_clients")]
    sums = reconciliation.views(tallied(records, bucket_s=60))
    agreed = reconciliation.agreements(sums, differing).select("operation", "clients", "broker")
    assert sorted(map(tuple, agreed.collect())) == [
        *[("complete", 2, 2), ("receive", 4, 4), ("send", 5, 4)]
    ]


CONSUMER: Line = {"cause": "consumer"}


def charged(records: DataFrame) -> tuple[DataFrame, DataFrame]:
    delivered = at_hand(charges.deliveries(fates(records)))
    table = at_hand(charges.charges(tallied(records, bucket_s=60)))
    return at_hand(charges.with_receives(table, delivered)), delivered


def test_calls_of_receivers_and_twins_are_charged_by_cause_and_stage(spark: SparkSession) -> None:
    records = ledger(
        spark,
        *(twinned("a", 1), received("a", 2, **EAST)),
        line("complete", "a", 2, **CONSUMER, **EAST),
        line("abandon", "a", 2, **CONSUMER, **EAST),
        *(line("renew", None, 2, **CONSUMER, **EAST), line("manage", None, 2, **CONSUMER, **EAST)),
        *(twinned("b", 1), *brought_home("b", 2), received("b", 3, namespace=LABEL)),
        *(sent("c", 1), received("c", 2)),
    )
    found, delivered = charged(records)
    counted: Counter[tuple[str, str, str]] = Counter()
    for row in found.collect():
        counted[row["cause"], row["operation"], row["stage"]] += row["operations"]
    assert counted == {
        ("failover", "divert", "send_twin"): 2,
        ("consumer", "receive", "receive_twin"): 1,
        ("consumer", "receive", "receive_primary"): 2,
        ("consumer", "complete", "settlement"): 1,
        ("consumer", "abandon", "settlement"): 1,
        ("consumer", "renew", "renew"): 1,
        ("consumer", "manage", "management"): 1,
        ("syphon", "backlog_receive", "receive_twin"): 1,
        ("syphon", "forward", "send_primary"): 1,
        ("syphon", "complete", "settlement"): 1,
        ("application", "send", "send_primary"): 1,
    }
    assert not found.where("assumed").collect()
    # By the model two stages at the twin, four by it and home, two at the primary.
    model = charges.beside_model(found, delivered).collect()
    assert {row["stage"]: (row["units"], row["model_units"]) for row in model} == {
        "send_twin": (2, 2),
        "receive_twin": (2, 2),
        "send_primary": (2, 2),
        "receive_primary": (2, 2),
    }


def test_receives_are_counted_once_by_one_view_or_the_other(spark: SparkSession) -> None:
    day_s = 86_400
    billing: Line = {"entity": "billing"}
    records = ledger(
        spark,
        # Both ends: the broker counts, without what the syphon received from the twin.
        *(twinned("a", 1), stored("receive", "a"), received("a", 2, **EAST)),
        *(twinned("b", 1), stored("receive", "b"), *brought_home("b", 2)),
        *(stored("receive", "b", LABEL), received("b", 3, namespace=LABEL)),
        # The same where the broker has another name for the secondary.
        twinned("m", 1, **billing, backlog_queue="billing"),
        *({**one, **billing, "backlog_queue": "billing"} for one in brought_home("m", 2)),
        *(stored("receive", "m", "dr", **billing), stored("receive", "m", LABEL, **billing)),
        # No line says that these were received: at the twin, and by it.
        twinned("c", 1, entity="silent", backlog_queue="silent"),
        # A consumer kept a ledger on the first day, and received one of them a day later.
        *(sent("d", 1, entity="heard"), received("d", 2, entity="heard")),
        *(sent("e", 1, entity="heard"), sent("f", day_s, entity="heard")),
        *(sent("g", 2 * day_s, entity="heard"), received("g", 3 * day_s, entity="heard")),
    )
    found, _ = charged(records)
    receives = found.where("operation = 'receive'").groupBy(
        "day", "entity", "stage", "view", "assumed"
    )
    days = [date(2025, 10, day) for day in (9, 10, 11, 12)]
    assert Counter(map(tuple, receives.sum("operations").collect())) == Counter(
        [
            (days[0], "orders", "receive_twin", "broker", False, 1),
            (days[0], "orders", "receive_primary", "broker", False, 1),
            (days[0], "billing", "receive_twin", "broker", False, 0),
            (days[0], "billing", "receive_primary", "broker", False, 1),
            (days[0], "silent", "receive_twin", "client", True, 1),
            (days[0], "heard", "receive_primary", "client", False, 1),
            # The third day has no receive, and its only message was received on the fourth.
            (days[1], "heard", "receive_primary", "client", True, 1),
            (days[3], "heard", "receive_primary", "client", False, 1),
        ]
    )
    by_view = charges.receives_by_view(at_hand(charges.charges(tallied(records, bucket_s=60))))
    assert dict(map(tuple, by_view.collect())) == {"client": 4, "broker": 3}


def gaps_of(
    spark: SparkSession,
    lines: list[Line],
    outages: Sequence[tuple[str, float, float]],
    *,
    last_s: float = 5_000,
    label: str = LABEL,
) -> dict[int, float]:
    """The gaps in seconds of outages of an entity, from and to these seconds."""
    few = session_for_few(spark)
    rows = [
        (number, label, entity, EPOCH_MS + int(began_s * 1000), EPOCH_MS + int(ended_s * 1000))
        for number, (entity, began_s, ended_s) in enumerate(outages)
    ]
    found = journeys.partial_journeys(ledger(spark, *lines), one_task=True)
    gaps = receive_gaps(
        found, few.createDataFrame(rows, OUTAGES), last_ms=EPOCH_MS + int(last_s * 1000)
    )
    return {row["number"]: row["gap_ms"] / 1000 for row in gaps.collect()}


def flow(first_s: int, last_s: int, name: str = "m", **fields: Any) -> list[Line]:
    """One message a second, each received a tenth of a second later."""
    lines: list[Line] = []
    for at_s in range(first_s, last_s):
        lines += [sent(f"{name}{at_s}", at_s, **fields), received(f"{name}{at_s}", at_s + 0.1)]
    return lines


def test_the_receive_gap_is_from_the_last_receipt_to_the_first_by_the_twin(
    spark: SparkSession,
) -> None:
    hung: Line = {"outcome": "unknown", "latency_us": 5_000_000}
    lines = [
        *flow(0, 10),
        # It hangs: an attempt from second 9.5 on ends at 14.5, and the twin takes it at 16.
        *(sent("late", 14.5, **hung), twinned("late", 16), received("late", 16.4, **EAST)),
        *(one for at_s in range(17, 40) for one in (twinned(f"t{at_s}", at_s),)),
        *(received(f"t{at_s}", at_s + 0.2, **EAST) for at_s in range(17, 40)),
        *flow(40, 50),
        # A night without traffic is no gap.
        *flow(3_000, 3_001),
    ]
    found = gaps_of(spark, lines, [("orders", 14.5, 40), ("news", 14.5, 40)])
    # The last receipt was at 9.1, and the attempt began at 9.5.
    assert found == {0: pytest.approx(6.9)}


def test_without_a_twin_the_gap_ends_when_the_first_message_is_home(spark: SparkSession) -> None:
    lines = [
        *flow(0, 10),
        *(diverted(f"d{at_s}", at_s, latency_us=200_000) for at_s in range(12, 30)),
        *(one for at_s in range(12, 30) for one in moved(f"d{at_s}", at_s, out_s=33)[1:]),
        *(received(f"d{at_s}", 33.5) for at_s in range(12, 30)),
        *flow(31, 33, "h"),
    ]
    # Healthy traffic was received first: the gap is that of the flow, not of each message.
    assert gaps_of(spark, lines, [("orders", 10, 30)]) == {0: pytest.approx(31.1 - 11.8)}
    home = [one for one in lines if not str(one["message_id"]).startswith("h")]
    assert gaps_of(spark, home, [("orders", 10, 30)]) == {0: pytest.approx(33.5 - 11.8)}


def test_a_gap_is_open_until_the_last_record_and_unknown_without_receipts(
    spark: SparkSession,
) -> None:
    lines = [
        *flow(0, 10),
        *(diverted(f"d{at_s}", at_s) for at_s in range(12, 30)),
        # Of an earlier time: scheduled, dead-lettered or filtered out.
        sent("never", 1),
        *(twinned("x", 12, entity="news", backlog_queue="news"),),
        # A consumer that names no pair, in a subscription.
        *(sent("y", 11, entity="mail"), twinned("y", 12, entity="mail", backlog_queue="mail")),
        received("y", 15, entity="mail/subscriptions/a", pair=None, **EAST),
        twinned("filtered", 13, entity="mail", backlog_queue="mail"),
    ]
    outages = [("orders", 10, 30), ("news", 10, 30), ("mail", 10, 30)]
    found = gaps_of(spark, lines, outages, last_s=30)
    assert found == {0: pytest.approx(30 - 12), 2: pytest.approx(15 - 11)}
    # Another pair's outage of an entity with this name.
    assert gaps_of(spark, lines, outages, label="fabrikam") == {}


def state(value: str, at_s: float) -> Line:
    return line("state", None, at_s, state=value, error="no success", namespace=LABEL)


STORY = [
    *flow(0, 10),
    state("suspect", 11),
    *(sent("raised", 11, outcome="failed"), sent("both", 14, outcome="unknown")),
    state("failed over", 15),
    *(twinned("both", 15), received("both", 15.5, **EAST)),
    *(twinned(f"t{at_s}", at_s) for at_s in range(16, 30)),
    *(received(f"t{at_s}", at_s + 0.1, **EAST) for at_s in range(16, 25)),
    state("healthy", 30),
    *(one for at_s in range(25, 28) for one in brought_home(f"t{at_s}", 31)),
    *(received(f"t{at_s}", 31.5) for at_s in range(25, 28)),
    *second_copy("both", 31),
    *flow(32, 40),
]
"""An outage with a twin: what is left there at the end are two messages."""


@pytest.mark.parametrize(
    "tables_of", [current_tables, pytest.param(batch_tables, marks=pytest.mark.soak)]
)
def test_the_reports_of_an_outage_with_a_twin(
    spark: SparkSession, tmp_path: Path, tables_of: Any
) -> None:
    middle = len(STORY) // 2
    write_lines(tmp_path, "test-00000.jsonl", STORY[:middle])
    write_lines(tmp_path, "test-00001.jsonl.open", STORY[middle:])
    with tables_of(spark, tmp_path) as tables:
        kept = conservation_report(tables, ReportRequest(), None, in_brief=True)
        over_time = availability_report(tables, ReportRequest())
    total = kept.total
    assert (total.accepted, total.delivered, total.raised) == (33, 33, 1)
    assert (total.at_twin, total.second_copies, total.duplicates) == (2, 1, 0)
    assert (total.received, total.undecided, total.lost) == (31, 0, 0)
    assert kept.verdict is ReportVerdict.GOOD
    [window] = over_time.windows
    [entity] = over_time.entities
    # From second 25 on nothing was received until the first message was home.
    assert window.receive_gap_ms == entity.receive_gap_ms == over_time.receive_gap_ms == 6_500
    assert (window.sends_saved, entity.sends_saved) == (15, 15)
    second = EPOCH_MS // 1000
    assert Sends(second + 16, 0, 0, 1) in over_time.sends
    assert not over_time.backlog
    assert over_time.drained == 0
