"""A side that is lost again and again is tried less often; one that held is tried soon."""

from __future__ import annotations

from twinbus.syphon.core.reconnect_backoff import LONGEST_RECONNECT_S, ReconnectBackoff


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_connection_that_held() -> None:
    patience = ReconnectBackoff(lambda: 0.0)
    assert [patience.after(0.1) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert patience.after(LONGEST_RECONNECT_S + 0.1) == 0.5
    assert patience.after(0.0) == 1.0


def test_chance_shortens_a_pause_by_half_at_most() -> None:
    assert ReconnectBackoff(lambda: 1.0).after(0.0) == 0.25
    assert ReconnectBackoff(lambda: 0.5).after(0.0) == 0.375
