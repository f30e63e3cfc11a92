"""The board that the page shows poll after poll, and states over time."""

from __future__ import annotations

import json

import pytest

from tests.unit.page.asgi import answer
from tests.unit.status.statuses import NOW, entity, status
from twinbus.page.core.model import Obstacle, ShownPair, ShownProof, ShownSyphon, Span, as_json
from twinbus.page.core.timeline import SPANS_MAX, WINDOW_S, EntitySpans, SendHistory, merged_spans
from twinbus.page.core.view import GONE_MAX, GONE_SHOWN_S, Board, headline_of
from twinbus.page.documents import with_observed
from twinbus.status.document import SyphonQueueStatus, SyphonStatus
from twinbus.status.fleet import FleetStatus


def board() -> Board:
    return Board(host="web-1")


def only(shown: Board) -> ShownPair:
    (pair,) = shown.table.pairs.values()
    return pair


def level(shown: Board, now: float = NOW) -> str:
    return headline_of(shown.table.pairs.values(), now).level


def text(shown: Board, now: float = NOW) -> str:
    return headline_of(shown.table.pairs.values(), now).text


def test_an_outage_becomes_spans_events_and_a_headline() -> None:
    shown = board()
    assert (level(shown), text(shown)) == ("none", "No pair runs here.")
    shown.observe([answer(status(entity(sent=5)), 0)], NOW)
    assert text(shown) == "Healthy: 1 pair, 1 entity, sends go to the primary."
    suspect = answer(status(entity(state="suspect", since_s=0.5)), 1)
    for later in (10, 30, 50):
        shown.observe([suspect], NOW + later)
    down = entity(state="failed over", since_s=1.0, diverted=1_204, reason="no success for 60 s")
    shown.observe([answer(status(down), 2)], NOW + 71)
    assert only(shown).entities[0].spans == [
        (NOW, NOW + 9.5, "healthy"),
        (NOW + 9.5, NOW + 70, "suspect"),
        (NOW + 70, None, "failed over"),
    ]
    assert level(shown) == "failed-over"
    assert text(shown, NOW + 135) == ("Failed over for 1 min 5 s: orders; 1,204 diverted.")
    assert [event.text for event in shown.events] == [
        "orders: healthy -> suspect",
        "orders: suspect -> failed over (no success for 60 s)",
    ]
    assert [event.t for event in shown.events] == [NOW + 9.5, NOW + 70]


def test_a_document_has_the_words_and_figures_of_status() -> None:
    shown = board()
    said = {"evidence": "1 other process", "pinger": "another host"}
    found = status(entity(state="failed over", since_s=3.0, **said), fleet=FleetStatus(hosts=2))
    shown.observe([answer(found)], NOW)
    pair = only(shown)
    assert pair.attention == ["failed over: orders (also: 1 other process)"]
    assert (pair.entities[0].pinger, pair.fleet) == (
        "another host", "2 other hosts on the notice board",
    )  # fmt: skip
    assert pair.safe is True
    assert pair.safety.startswith("sends are safe: those to orders go to the backlog")
    assert pair.started_at == 1_794_873_600.0
    json.dumps(pair, default=as_json)


def test_only_what_changed_gets_a_new_version() -> None:
    shown = board()
    quiet, busy = answer(status(entity()), pid=1), answer(status(entity(sent=1)), pid=2)
    shown.observe([quiet, busy], NOW)
    before = dict(shown.table.versions)
    later = answer(status(entity(sent=2)), 1, pid=2)
    shown.observe([quiet, later], NOW + 1)
    assert shown.table.versions[quiet.id] == before[quiet.id]
    assert shown.table.versions[busy.id] > before[busy.id]


def test_the_time_of_a_state_does_not_change_with_every_poll() -> None:
    shown = board()
    versions = []
    for second in range(4):
        jitter = 0.01 * (second % 2)
        down = entity(state="failed over", since_s=5.0 + second + jitter)
        shown.observe([answer(status(down), second)], NOW + second)
        versions.append(shown.table.version)
    assert len(set(versions)) == 1


def test_a_pair_that_ended_is_shown_for_an_hour_and_its_spans_end() -> None:
    shown = board()
    shown.observe([answer(status(entity(state="suspect", fails_over_in_s=5.0)))], NOW)
    shown.observe([], NOW + 5)
    pair = only(shown)
    assert (pair.state, pair.why) == ("gone", "no longer running")
    assert pair.entities[0].spans == [(NOW, NOW + 5, "suspect")]
    assert pair.entities[0].fails_over_in_s is None
    assert text(shown) == "No pair runs here; 1 pair ended within the last hour."
    assert shown.events[-1].text == "contoso: no longer running, pid 7"
    shown.observe([], NOW + 5 + GONE_SHOWN_S)
    assert shown.table.pairs
    shown.observe([], NOW + 6 + GONE_SHOWN_S)
    assert not shown.table.pairs
    assert shown.table.removals == 1


def test_pairs_that_ended_are_bounded() -> None:
    shown = board()
    for number in range(GONE_MAX + 5):
        shown.observe([answer(status(), pid=number)], NOW + number)
    shown.observe([], NOW + 1_000)
    assert len(shown.table.pairs) == GONE_MAX
    assert len(shown.table.versions) == GONE_MAX


def test_a_silent_pair_keeps_what_was_known_and_comes_back() -> None:
    shown = board()
    first = answer(status(entity(sent=3)))
    shown.observe([first], NOW)
    shown.observe([answer(None, why="no answer within 5 s")], NOW + 1)
    pair = only(shown)
    assert (pair.state, pair.why, pair.state_since) == (
        "silent", "no answer within 5 s", NOW + 1,
    )  # fmt: skip
    assert pair.entities[0].sent == 3
    assert text(shown) == "No answer from contoso: no answer within 5 s."
    shown.observe([first], NOW + 2)
    assert only(shown).state == "running"


def test_a_socket_that_never_answered_is_shown_too() -> None:
    shown = board()
    shown.observe([answer(None, why="permission denied")], NOW)
    assert only(shown).state == "silent"
    assert level(shown) == "attention"


def test_the_worst_is_the_headline() -> None:
    shown = board()
    failed = answer(status(entity(state="failed over", since_s=1.0)), pid=1)
    why = "the secondary cannot be reached"
    bare = status(entity(), protected=False, searching=why, backlog_queues={})
    shown.observe([failed, answer(bare, pid=2, name="fabrikam")], NOW)
    assert (level(shown), text(shown)) == (
        "unprotected",
        "Unprotected: fabrikam, sends have no backlog (the secondary cannot be reached).",
    )
    shown = board()
    shown.observe([failed, answer(status(entity(state="unusable")), pid=3)], NOW)
    assert level(shown) == "attention"
    assert "nothing lost" not in text(shown)
    shown = board()
    shown.observe([answer(status(entity(), ledger_unrecorded=4))], NOW)
    assert text(shown) == "contoso: the ledger could not record 4 lines."


def test_a_syphon_is_shown_with_its_sums_and_obstacles() -> None:
    one = SyphonQueueStatus(
        completed=10, in_flight=1, dead_lettered=2, rate_per_s=1.5, paused=True,
        problems={"primary": "connection refused TrackingId:a_B"},
    )  # fmt: skip
    queues = {f"contoso/x-servicebus-transfer/{index}": one for index in (0, 1)}
    found = SyphonStatus(queues=queues, paused=True, waiting=9)
    shown = board()
    shown.observe([answer(found, kind="syphon")], NOW)
    pair = only(shown)
    assert pair.syphon == ShownSyphon(
        paused=True, completed=20, in_flight=2, dead_lettered=4, rate=3.0, forecast_s=None,
        limit="", obstacles=[Obstacle("primary", "connection refused")],
    )  # fmt: skip
    assert (pair.waiting, pair.safe) == (9, None)
    assert pair.attention == [
        "the syphon is paused: `twinbus syphon resume` resumes it",
        "primary: connection refused [2 queues]",
    ]


def test_sends_are_counted_in_buckets_from_the_second_observation_on() -> None:
    sends = SendHistory()
    assert sends.observe((100, 5, 0), NOW) == []
    assert sends.observe((103, 5, 1), NOW + 1) == [(NOW, 3, 0, 1)]
    assert sends.observe((104, 7, 1), NOW + 11) == [(NOW, 3, 0, 1), (NOW + 10, 1, 2, 0)]
    # Nobody observed for a minute: what was sent meanwhile belongs to no bucket.
    assert sends.observe((900, 7, 1), NOW + 80)[-1] == (NOW + 10, 1, 2, 0)
    assert sends.observe((901, 7, 1), NOW + 700) == []


def test_a_hold_by_hand_is_a_span_of_its_own_and_flapping_is_bounded() -> None:
    shown = board()
    shown.observe([answer(status(entity(since_s=100.0)), 0)], NOW)
    shown.observe([answer(status(entity(since_s=104.0, frozen=True)), 1)], NOW + 4)
    assert only(shown).entities[0].spans == [
        (NOW - 100, NOW + 4, "healthy"),
        (NOW + 4, None, "frozen"),
    ]
    spans = EntitySpans()
    for second in range(200):
        spans.observe(("healthy", "suspect")[second % 2], None, NOW + second)
    assert len(spans.end(NOW + 200)) == SPANS_MAX


def test_hours_of_changes_are_no_larger_than_the_window() -> None:
    """What a tab holds is the documents; the soak of an open tab measures a real one."""
    shown, sizes = board(), []
    for second in range(0, 3 * 3_600, 5):
        state = ("healthy", "failed over")[second // 100 % 2]
        changing = entity(state=state, since_s=second % 100.0, sent=1_000_000 + second)
        shown.observe([answer(status(changing), second)], NOW + second)
        if second >= WINDOW_S + 100:
            sizes.append(len(json.dumps(only(shown), default=as_json)))
    assert max(sizes) <= max(sizes[:100]) * 1.02
    assert len(only(shown).entities[0].spans) <= WINDOW_S / 100 + 2
    assert len(shown.events) == 107


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
