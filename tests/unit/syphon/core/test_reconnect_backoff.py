"""A side that is lost again and again is tried less often; one that held is tried soon."""

from __future__ import annotations

from twinbus.syphon.core.reconnect_backoff import (
    LONGEST_MISSING_S,
    LONGEST_RECONNECT_S,
    ReconnectBackoff,
)


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_connection_that_held() -> None:
    patience = ReconnectBackoff(lambda: 0.0)
    assert [patience.after(0.1) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert patience.after(LONGEST_RECONNECT_S + 0.1) == 0.5
    assert patience.after(0.0) == 1.0


def test_chance_shortens_a_pause_by_half_at_most() -> None:
    assert ReconnectBackoff(lambda: 1.0).after(0.0) == 0.25
    assert ReconnectBackoff(lambda: 0.5).after(0.0) == 0.375


def test_a_queue_that_does_not_exist_is_tried_once_a_minute() -> None:
    patience = ReconnectBackoff(lambda: 0.0)
    pauses = [patience.after(0.1, is_missing=True) for _ in range(9)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_MISSING_S, LONGEST_MISSING_S]
    assert patience.after(0.1) == LONGEST_RECONNECT_S, "an outage after it is tried often"
