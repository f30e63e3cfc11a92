"""States over time: what the page did not see is unknown, and what raises is no green light."""

from __future__ import annotations

import pytest

from tests.unit.page.core.test_view import board, level, only, text
from tests.unit.page.pairs import answer
from tests.unit.status.statuses import NOW, entity, status
from twinbus.page.core.model import ShownProof, Span
from twinbus.page.core.timeline import EntitySpans, SendHistory, merged_spans
from twinbus.page.core.view import headline_of
from twinbus.page.documents import with_observed


def test_an_outage_while_no_tab_was_open_is_unknown_and_not_green() -> None:
    shown = board()
    shown.observe([answer(status(entity()), 0)], NOW)
    # The tab is closed; the entity fails over and returns; the tab is opened.
    shown.observe([answer(status(entity(since_s=20.0)), 1)], NOW + 300)
    assert only(shown).entities[0].spans == [
        (NOW, NOW, "healthy"),
        (NOW, NOW + 280, "unknown"),
        (NOW + 280, None, "healthy"),
    ]
    assert only(shown).unseen == [(NOW, NOW), (NOW, NOW + 300)]


def test_a_state_that_lasted_over_the_gap_is_known() -> None:
    spans = EntitySpans()
    spans.observe("failed over", NOW - 50, NOW)
    assert spans.observe("failed over", NOW - 50, NOW + 900) == [(NOW - 50, None, "failed over")]
    never = EntitySpans()
    never.observe("healthy", None, NOW)
    assert never.observe("healthy", None, NOW + 900) == [(NOW, None, "healthy")]


def test_another_state_after_a_gap_begins_when_it_began_and_the_rest_is_unknown() -> None:
    shown = board()
    shown.observe([answer(status(entity()), 0)], NOW)
    down = entity(state="failed over", since_s=100.0, reason="no success for 8 s")
    shown.observe([answer(status(down), 1)], NOW + 300)
    assert only(shown).entities[0].spans[1:] == [
        (NOW, NOW + 200, "unknown"),
        (NOW + 200, None, "failed over"),
    ]
    # It was suspect in between: the page does not claim that it was healthy until then.
    assert [event.text for event in shown.events] == ["orders: failed over (no success for 8 s)"]


def test_a_short_stay_between_two_polls_is_unknown_too() -> None:
    spans = EntitySpans()
    spans.observe("healthy", NOW - 50, NOW)
    assert spans.observe("healthy", NOW + 4, NOW + 5)[-2:] == [
        (NOW, NOW + 4, "unknown"),
        (NOW + 4, None, "healthy"),
    ]


def test_a_hold_begins_when_the_person_gave_it() -> None:
    shown = board()
    shown.observe([answer(status(entity(state="failed over", since_s=10.0)), 0)], NOW)
    held = entity(state="failed over", since_s=100.0, forced=True, held_at=NOW + 20)
    shown.observe([answer(status(held), 1)], NOW + 90)
    assert only(shown).entities[0].spans == [
        (NOW - 10, NOW, "failed over"),
        (NOW, NOW + 20, "unknown"),
        (NOW + 20, None, "forced"),
    ]


def test_the_ledger_comes_before_memory_and_holds_before_both() -> None:
    ledger: list[Span] = [
        (0.0, 100.0, "healthy"),
        (100.0, 108.0, "suspect"),
        (108.0, 130.0, "failed over"),
        (130.0, None, "healthy"),
    ]
    seen: list[Span] = [
        (50.0, 95.0, "healthy"),
        (95.0, 130.0, "unknown"),
        (130.0, 160.0, "healthy"),
        (160.0, None, "frozen"),
    ]
    assert merged_spans(ledger, seen, 10.0, 200.0, known_from=0.0) == [
        (10.0, 100.0, "healthy"),
        (100.0, 108.0, "suspect"),
        (108.0, 130.0, "failed over"),
        (130.0, 160.0, "healthy"),
        (160.0, 200.0, "frozen"),
    ]
    # Without a ledger the gap stays, and so does what was before the first look.
    assert merged_spans([], seen, 10.0, 200.0, known_from=30.0) == [
        (30.0, 50.0, "unknown"),
        (50.0, 95.0, "healthy"),
        (95.0, 130.0, "unknown"),
        (130.0, 160.0, "healthy"),
        (160.0, 200.0, "frozen"),
    ]


def test_sends_of_a_gap_are_not_drawn_as_none() -> None:
    history = SendHistory()
    history.observe((0, 0, 0), NOW, NOW - 40)
    history.observe((5, 0, 0), NOW + 1)
    history.observe((500, 0, 0), NOW + 100)
    assert history.unseen == [(NOW - 40, NOW), (NOW + 1, NOW + 100)]


@pytest.mark.parametrize(
    ("proof", "said"),
    [
        (None, "1,204 diverted."),
        (ShownProof(), "1,204 diverted."),
        (ShownProof(verdict="unknown", made_at=NOW + 60), "1,204 diverted."),
        (ShownProof(verdict="nothing lost", made_at=NOW - 60), "1,204 diverted."),
        (ShownProof(verdict="nothing lost", made_at=NOW + 60), "nothing lost by the proof of "),
        (ShownProof(verdict="lost", made_at=NOW + 60), "messages were LOST by the proof of "),
    ],
)
def test_nothing_lost_is_said_only_by_a_proof_of_this_outage(
    proof: ShownProof | None, said: str
) -> None:
    shown = board()
    down = entity(state="failed over", since_s=1.0, diverted=1_204)
    shown.observe([answer(status(down), 0)], NOW)
    found = headline_of(shown.table.pairs.values(), NOW + 90, proof).text
    assert said in found
    assert ("lost" in found.lower()) is ("proof" in found)
    assert "lost" not in text(shown)


@pytest.mark.parametrize("state", ["running", "gone"])
def test_the_document_of_a_timeline_merges_ledger_and_memory(state: str) -> None:
    shown = board()
    shown.observe([answer(status(entity(), entity("events")), 0)], NOW)
    shown.observe([answer(status(entity(since_s=20.0), entity("events")), 1)], NOW + 300)
    if state == "gone":
        shown.observe([], NOW + 310)
    recorded = [(NOW + 250, NOW + 258, "suspect"), (NOW + 258, NOW + 280, "failed over")]
    row = {"path": "orders", "spans": recorded, "marks": [[NOW + 258, "failover"]]}
    found = {"from": NOW - 60, "to": NOW + 400, "entities": [row]}
    until = NOW + (400 if state == "running" else 310)
    rows = {one["path"]: one for one in with_observed(found, only(shown))["entities"]}
    assert rows["orders"]["marks"] == row["marks"]
    assert rows["orders"]["spans"] == [
        (NOW, NOW + 250, "unknown"),
        *recorded,
        (NOW + 280, until, "healthy"),
    ]
    assert rows["events"]["spans"] == [(NOW, until, "healthy")]


GONE = "NotFound: no such queue TrackingId:a_B, SystemTracker:x, Timestamp:2026"


def test_a_healthy_entity_whose_calls_raise_is_no_green_light() -> None:
    shown = board()
    shown.observe([answer(status(entity()), 0)], NOW)
    raising = entity(raised=3, raising=3, raising_reason=GONE)
    shown.observe([answer(status(raising), 1)], NOW + 5)
    [found] = only(shown).entities
    assert (found.state, found.states) == ("healthy", ["raising"])
    assert found.spans[-1] == (NOW + 5, None, "raising")
    assert (level(shown), only(shown).safe) == ("attention", False)
    assert text(shown) == (
        "contoso: sends are NOT safe: those to orders raise (3 calls in the last minute:"
        " NotFound: no such queue)."
    )
    assert [event.text for event in shown.events] == [
        "orders: healthy -> raising (NotFound: no such queue)"
    ]
    shown.observe([answer(status(entity(raised=3)), 2)], NOW + 66)
    assert level(shown) == "healthy"
    assert only(shown).entities[0].spans[-1] == (NOW + 66, None, "healthy")
