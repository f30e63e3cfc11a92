"""When a supervisor should restart a syphon, and when not."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.status.document import SyphonQueueStatus
from twinbus.syphon.core.health import STUCK_S, StallDetector, SyphonHealth

QUEUE = "contoso/x-servicebus-transfer/0"


def states(**changes: Any) -> dict[str, SyphonQueueStatus]:
    return {QUEUE: SyphonQueueStatus(**{"in_flight": 5, **changes})}


def watched(
    *timeline: tuple[float, dict[str, SyphonQueueStatus]], rate_per_s: float | None = None
) -> SyphonHealth:
    """Return the verdict at the end of a timeline."""
    watch = StallDetector(rate_per_s)
    for now, queues in timeline:
        watch.observe(queues, now)
    now, queues = timeline[-1]
    return watch.health(queues, now)


def test_a_pump_that_moves_is_healthy() -> None:
    health = watched(*((now, states(completed=int(now))) for now in (0.0, STUCK_S, 2 * STUCK_S)))
    assert (health, health.word) == (SyphonHealth((), ()), "ok")


def test_messages_in_flight_that_nothing_blocks_and_that_do_not_move_are_stuck() -> None:
    assert watched((0.0, states()), (STUCK_S - 1, states())).word == "ok"
    health = watched((0.0, states()), (STUCK_S, states()))
    assert health.word == "failed"
    (why,) = health.failures
    assert why.startswith(f"{QUEUE}: stuck: 5 messages in flight, none settled for 300 s")
    again = watched((0.0, states()), (STUCK_S, states()), (STUCK_S + 1, states(completed=1)))
    assert again.word == "ok"


@pytest.mark.parametrize(
    ("changes", "waits_for"),
    [
        ({"problems": {"primary": "connection refused"}}, "primary: connection refused"),
        ({"problems": {"secondary": "gone"}}, "secondary: gone"),
        ({"problems": {"lease": "another syphon has the lease"}}, "lease: another syphon has"),
        ({"held": {"orders": "it is disabled"}}, "orders: it is disabled"),
        ({"paused": True}, "paused by an operator"),
    ],
)
def test_what_a_restart_does_not_cure_is_waited_for(changes: Any, waits_for: str) -> None:
    health = watched((0.0, states(**changes)), (9 * STUCK_S, states(**changes)))
    assert (health.word, health.failures) == ("waiting", ())
    assert health.waits_for[0].startswith(waits_for)


def test_after_an_outage_a_pump_has_its_whole_time_again() -> None:
    down = states(problems={"primary": "gone"})
    timeline = [(0.0, states()), (STUCK_S - 1, down), (STUCK_S + 10, states())]
    assert watched(*timeline).word == "ok"
    assert watched(*timeline, (2 * STUCK_S - 1, states())).word == "failed"


def test_an_idle_pump_and_a_slow_rate_are_not_stuck() -> None:
    assert watched((0.0, states(in_flight=0)), (9 * STUCK_S, states(in_flight=0))).word == "ok"
    assert watched((0.0, states()), (9_999.0, states()), rate_per_s=0.01).word == "ok"
    assert watched((0.0, states()), (10_000.0, states()), rate_per_s=0.01).word == "failed"


def test_a_failed_pump_asks_for_a_restart_at_once() -> None:
    health = watched((0.0, states(problems={"pump": "the syphon itself failed"})))
    assert health == SyphonHealth(("the syphon itself failed",), ())


def test_without_a_queue_it_waits() -> None:
    assert watched((0.0, {})).waits_for == ("no backlog queue was found yet",)
