"""Bills from monthly sums, balances, and the comments that the page of the tables shows."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from unittest import mock

import pytest

from docs_pages import schema_page
from twinbus.cost.arithmetic import CountingRule
from twinbus.cost.prices import Meter, Tier, standard
from twinbus.pipeline.core.rules import FATES_OF_ACCEPTED
from twinbus.pipeline.reports.conservation import BacklogSnapshot
from twinbus.pipeline.reports.judgement import Sums
from twinbus.pipeline.reports.values import Charge, MonthlySum, bill, charges_by_kind
from twinbus.pipeline.tables import gold
from twinbus.pipeline.tables.gold import stored_schemas

M = 1_000_000
SUMS = [
    MonthlySum("2026-01", "application", "send", False, 14 * M, 14 * M, 5_000, 0),
    MonthlySum("2026-02", "application", "send", False, 13 * M, 13 * M, 5_000, 0),
    MonthlySum("2026-02", "syphon", "complete", False, 2 * M, 2 * M, 0, 0),
    MonthlySum("2026-02", "consumer", "receive", True, M, M, 0, 7 * 10**9),
]


def test_each_month_has_its_own_free_operations() -> None:
    found = bill(SUMS, standard(), CountingRule())
    # January: one million past the free 13. February: 14 with the receives, one past them.
    assert found.amount == Decimal("1.60")
    assert (found.units, found.settlement_units) == (28 * M, 2 * M)
    assert found.amount_past_free == Decimal("22.40")
    assert (found.bytes_in, found.bytes_out, found.egress_amount) == (10_000, 7 * 10**9, None)


def test_settlement_is_charged_when_the_rule_says_so() -> None:
    found = bill(SUMS, standard(), CountingRule(count_settlement=True))
    assert (found.amount, found.units) == (Decimal("3.20"), 30 * M)
    assert found.settlement_counted


def test_egress_is_priced_when_the_book_has_a_price() -> None:
    book = standard()
    egress = Meter("Out", "1 GB", 10**9, (Tier(0, Decimal("0.05")),))
    priced = replace(book, meters={**book.meters, "egress": egress})
    assert bill(SUMS, priced, CountingRule()).egress_amount == Decimal("0.35")


def test_nothing_costs_nothing() -> None:
    found = bill([], standard(), CountingRule())
    assert found.units == 0
    assert found.amount == found.amount_past_free == Decimal(0)


def test_kinds_are_summed_over_the_months() -> None:
    assert charges_by_kind(SUMS) == (
        Charge("application", "send", False, 27 * M, 27 * M),
        Charge("consumer", "receive", True, M, M),
        Charge("syphon", "complete", False, 2 * M, 2 * M),
    )


PEEK = BacklogSnapshot(mock.Mock(), 0)
ELSEWHERE = BacklogSnapshot(mock.Mock(), 0, frozenset({"fabrikam"}))


@pytest.mark.parametrize(
    ("peek", "has_broker", "fates", "unknown"),
    [
        (None, True, {"delivered": 5, "waiting": 2, "expired": 1, "lost": 1}, set()),
        (PEEK, False, {"delivered": 5, "waiting": 2, "dead_lettered": 1}, set()),
        (None, False, {"delivered": 5}, set()),
        (
            None,
            False,
            {"delivered": 5, "undecided": 2},
            {"waiting", "dead_lettered", "expired", "lost"},
        ),
        (None, True, {"waiting": 2, "undecided": 1}, {"dead_lettered", "lost"}),
        (PEEK, True, {"undecided": 1}, {"lost"}),
        (ELSEWHERE, True, {"undecided": 1}, {"waiting", "dead_lettered", "lost"}),
    ],
)
def test_a_balance_adds_up_and_says_what_it_does_not_know(
    peek: BacklogSnapshot | None, has_broker: bool, fates: dict[str, int], unknown: set[str]
) -> None:
    counts = {
        "destination": "orders",
        "primary_label": "contoso",
        "accepted": sum(fates.values()),
        "raised": 0,
        "repeated": 0,
        "at_twin": 0,
        "second_copies": 0,
        "redeliveries": 0,
        "broker_completed": 0,
        **dict.fromkeys(FATES_OF_ACCEPTED, 0),
        **fates,
    }
    balance = Sums(peek=peek, has_broker=has_broker, counted=counts).balance(counts)
    told = {fate: getattr(balance, fate) for fate in FATES_OF_ACCEPTED}
    assert {fate for fate, count in told.items() if count is None} == unknown
    assert sum(count or 0 for count in told.values()) == balance.accepted


def test_the_page_has_every_column_with_its_comment() -> None:
    sections = dict(part.split("\n", 1) for part in schema_page().split("\n## ")[1:])
    assert sections.keys() == stored_schemas().keys()
    for name, schema in stored_schemas().items():
        for column in schema:
            line = f"| `{column.name}` | {column.dataType.simpleString()}"
            assert line in sections[name]
            assert column.metadata["comment"] in sections[name]


def test_every_table_and_column_has_a_comment_and_none_is_left_over() -> None:
    schemas = stored_schemas()
    assert gold.TABLE_COMMENTS.keys() == schemas.keys()
    assert all(one.metadata["comment"] for schema in schemas.values() for one in schema)
    own = {(table, name) for table, columns in gold._COUNTED.items() for name in columns}
    there = {(table, name) for table, schema in schemas.items() for name in schema.fieldNames()}
    assert own <= there
    assert gold._COLUMNS.keys() == {name for _, name in there - own}
