"""What callers see under every fault: the official SDK, real processes, real sockets.

The table is in `fault_table`, each row a test here and a line of docs/failures.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end import fault_table
from tests.end_to_end.fault_table import RETURNS, ROWS, Row
from tests.end_to_end.fault_world import (
    ATTEMPT_S,
    FAILOVER_S,
    HASTE_S,
    OPTIONS,
    PATIENCE_S,
    FaultWorld,
    places,
    run_faults,
)
from twinbus.errors import BacklogUnavailableError
from twinbus.pairing.core.attempts import RetryPolicy, call_limit_s

pytestmark = pytest.mark.end_to_end

GRACE_S = 2.0
"""How far past its timeout a call may return on a busy machine; an attempt would last longer."""

BUSY_GRACE_S = 8.0
"""The same while many processes start: it is the end that counts, and that it comes."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> FaultWorld:
    return run_faults(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_callers_see_what_the_table_says(world: FaultWorld, row: Row) -> None:
    check(world, row)


@pytest.mark.parametrize(
    "is_short", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["short", "whole"]
)
def test_callers_see_the_same_under_the_limits_of_azure(tmp_path: Path, is_short: bool) -> None:
    world = run_faults(tmp_path, "--like", "azure-standard", is_short=is_short)
    rows = [row for row in ROWS if row.key in world.outcomes]
    assert len(rows) >= 15
    assert is_short or len(rows) == len(ROWS)
    for row in rows:
        check(world, row)


def check(world: FaultWorld, row: Row) -> None:
    outcome = world.outcomes[row.key]
    assert (outcome.sees, outcome.state) == (row.sees, row.state), repr(outcome.error)
    assert places(outcome.stored) in row.stored
    if row.sees != RETURNS:
        assert outcome.error.message_ids == (outcome.message_id,)  # type: ignore[union-attr]
    assert carried(outcome.error) == row.carries
    if row.caller == fault_table.HASTY:
        assert outcome.took_s < HASTE_S + GRACE_S


def carried(error: BaseException | None) -> tuple[str, ...]:
    if not isinstance(error, BacklogUnavailableError):
        return ()
    primary = error.primary_error
    parts = [] if primary is None else [f"primary_error: {type(primary).__name__}"]
    return (*parts, f"queue_errors: {len(error.queue_errors)}")


def test_each_row_is_there_once_and_every_fault_was_done(world: FaultWorld) -> None:
    keys = [row.key for row in ROWS]
    assert sorted(keys) == sorted(set(keys)) == sorted(world.outcomes)


def test_what_one_sender_learned_of_a_bad_backlog_queue_all_know(world: FaultWorld) -> None:
    first, second = (f"bad/x-servicebus-transfer/{index}" for index in (0, 1))
    assert world.pulled == {"bad-backlog-queue": [first], "hanging-backlog-queue": [first, second]}


def test_what_needs_no_retry_is_told_at_once(world: FaultWorld) -> None:
    for key in ("deleted", "disabled", "expired-token"):
        assert world.outcomes[key].took_s < FAILOVER_S, key
    assert world.outcomes["hanging-backlog-queue"].took_s < ATTEMPT_S + FAILOVER_S


def test_calls_wait_for_a_lost_secondary_until_their_time_is_over(world: FaultWorld) -> None:
    for key in ("both-down", "both-down-again"):
        took_s = world.outcomes[key].took_s
        assert PATIENCE_S - GRACE_S < took_s < PATIENCE_S + BUSY_GRACE_S, key
    limit_s = call_limit_s(RetryPolicy.of(OPTIONS))
    assert world.outcomes["both-down-without-timeout"].took_s < limit_s + BUSY_GRACE_S
    assert world.outcomes["secondary-blip"].took_s < PATIENCE_S
