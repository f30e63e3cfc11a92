"""What `twinbus syphon run` prints of an outage: one line when it begins, one when it is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twinbus.console.syphon.run import PARTLY_S, ObstacleLog
from twinbus.status.document import SyphonQueueStatus

QUEUES = [f"contoso/x-servicebus-transfer/{index}" for index in range(4)]


def queues(count: int = 4, what: str = "primary", why: str = "", **facts: Any) -> dict[str, Any]:
    """Return four queues of which so many have a problem, if there is a reason."""
    well = SyphonQueueStatus(**facts)
    ill = replace(well, problems={what: why}) if why else well
    return {queue: ill if index < count else well for index, queue in enumerate(QUEUES)}


def test_a_killed_primary_is_one_line_and_its_return_another() -> None:
    log = ObstacleLog()
    assert log.observe(queues(2, why="the connection was lost"), 0.0) == []
    assert log.observe(queues(4, why="the connection was lost"), 1.0) == [
        ("held", "the primary is lost: the connection was lost")
    ]
    for now in range(2, 20):
        assert log.observe(queues(4, why="contoso cannot be reached"), float(now)) == []
    # Some queues have it again: it is not over.
    assert log.observe(queues(1, why="contoso cannot be reached"), 22.0) == []
    assert log.observe(queues(), 23.0) == [("released", "the primary is back after 22 s")]
    assert log.observe(queues(), 24.0) == []


def test_a_queue_that_alone_loses_a_side_is_named() -> None:
    log = ObstacleLog()
    disabled = queues(1, "secondary", "it is disabled")
    assert log.observe(disabled, 0.0) == []
    assert log.observe(disabled, PARTLY_S) == [
        ("held", f"{QUEUES[0]}: the secondary is lost: it is disabled")
    ]
    # All lose it later: that is an outage of the side.
    assert log.observe(queues(4, "secondary", "refused"), 60.0) == [
        ("held", "the secondary is lost: refused")
    ]
    assert log.observe(disabled, 70.0) == [("released", "the secondary is back after 10 s")]
    assert log.observe(queues(), 90.0) == [
        ("released", f"{QUEUES[0]}: the secondary is back after 1 min 30 s")
    ]


def test_held_destinations_and_leases_are_one_line_for_all_queues() -> None:
    log = ObstacleLog()
    full = {"orders": "it is full"}
    assert log.observe(queues(held=full), 0.0) == [("held", "orders is held: it is full")]
    assert log.observe(queues(held={"orders": "it is busy"}), 1.0) == []
    assert log.observe(queues(3, "lease", "another syphon has it"), 61.0) == [
        ("held", "lease: another syphon has it [3 queues]"),
        ("released", "orders is no longer held after 1 min 1 s"),
    ]
