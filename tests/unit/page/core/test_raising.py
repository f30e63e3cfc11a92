"""The page and `top` show an entity whose calls raise: chip, span, event and headline."""

from __future__ import annotations

from tests.unit.page.core.test_view import board, level, only, text
from tests.unit.page.pairs import answer
from tests.unit.status.statuses import NOW, entity, status

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
