"""From counts to a balance: what is known adds up, what is not is None."""

from __future__ import annotations

from unittest import mock

import pytest

from twinbus.pipeline.reports.conservation import BacklogSnapshot, _Sums
from twinbus.pipeline.tables.journeys import FATES_OF_ACCEPTED

LOOK = BacklogSnapshot(mock.Mock(), 0)
ELSEWHERE = BacklogSnapshot(mock.Mock(), 0, frozenset({"fabrikam"}))


@pytest.mark.parametrize(
    ("look", "has_broker", "fates", "unknown"),
    [
        (None, True, {"delivered": 5, "waiting": 2, "expired": 1, "lost": 1}, set()),
        (LOOK, False, {"delivered": 5, "waiting": 2, "dead_lettered": 1}, set()),
        (None, False, {"delivered": 5}, set()),
        (
            None,
            False,
            {"delivered": 5, "undecided": 2},
            {"waiting", "dead_lettered", "expired", "lost"},
        ),
        (None, True, {"waiting": 2, "undecided": 1}, {"dead_lettered", "lost"}),
        (LOOK, True, {"undecided": 1}, {"lost"}),
        (ELSEWHERE, True, {"undecided": 1}, {"waiting", "dead_lettered", "lost"}),
    ],
)
def test_a_balance_adds_up_and_says_what_it_does_not_know(
    look: BacklogSnapshot | None, has_broker: bool, fates: dict[str, int], unknown: set[str]
) -> None:
    counts = {
        "destination": "orders",
        "primary_label": "contoso",
        "accepted": sum(fates.values()),
        "raised": 0,
        "repeated": 0,
        **dict.fromkeys(FATES_OF_ACCEPTED, 0),
        **fates,
    }
    balance = _Sums(look=look, has_broker=has_broker, counted=counts).balance(counts)
    told = {fate: getattr(balance, fate) for fate in FATES_OF_ACCEPTED}
    assert {fate for fate, count in told.items() if count is None} == unknown
    assert sum(count or 0 for count in told.values()) == balance.accepted
