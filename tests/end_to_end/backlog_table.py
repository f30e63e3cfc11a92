"""Backlog queues that are missing or wrong, as data: docs/failures.md prints it, tests show it.

Each row names the tests that do it, by file and name; a test of the page checks that they exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class BacklogRow:
    """One thing that is wrong with a backlog queue, and what comes of it."""

    fault: str
    at_first: str
    then: str
    shown_by: tuple[str, ...]


LATE: Final = "end_to_end/test_late_queues.py"
DRIFTED: Final = "end_to_end/test_drifted_backlog.py"
TIMES: Final = "unit/pairing/lifecycle/test_discovery.py"


def named(file: str, name: str) -> str:
    """A test, as the page's own test looks for it."""
    return f"{file}::{name}"


BACKLOG_ROWS: Final = (
    BacklogRow(
        fault="`create_backlog_queues=False`, and a queue is made after the pairing",
        at_first="left out; UNPROTECTED if there is no other",
        then="found and used within 60 s",
        shown_by=(
            named(LATE, "test_queues_that_an_administrator_makes_later_protect_the_pair"),
            named(TIMES, "test_without_manage_a_queue_that_comes_later_is_found_within_a_minute"),
        ),
    ),
    BacklogRow(
        fault="a queue is disabled at the pairing and enabled later",
        at_first="left out; UNPROTECTED if there is no other",
        then="used within 60 s, after an hour within 5 minutes",
        shown_by=(
            named(LATE, "test_queues_disabled_at_start_and_enabled_later_protect_the_pair"),
            named(TIMES, "test_a_disabled_queue_is_searched_every_minute_of_an_hour_then_less"),
        ),
    ),
    BacklogRow(
        fault="a queue is deleted while it is in use",
        at_first="pulled at the first divert, which goes to another queue",
        then="with Manage created again within seconds; without it left out until it is there",
        shown_by=(
            named(LATE, "test_a_queue_that_is_deleted_later_is_made_again_or_found_again"),
            named(TIMES, "test_a_queue_that_diverts_find_deleted_is_made_again_at_once"),
        ),
    ),
    BacklogRow(
        fault="a queue that detects duplicates, without Manage",
        at_first="used: its copies have ids of their own, so it drops nothing",
        then="the syphon restores the ids",
        shown_by=(
            named(
                DRIFTED,
                "test_duplicate_detection_drops_nothing_and_ids_come_home",
            ),
        ),
    ),
    BacklogRow(
        fault="a queue that requires sessions, without Manage",
        at_first="with Listen left out at the pairing; without it at the first divert, which goes"
        " to another queue",
        then="without Listen offered one message an hour later, as only a message can tell",
        shown_by=(
            named(DRIFTED, "test_a_queue_that_requires_sessions_is_found_by_a_refused_send"),
            named(DRIFTED, "test_with_listen_sessions_and_forwarding_are_found_at_pairing"),
            named(
                TIMES,
                "test_a_queue_that_refuses_for_a_session_is_tried_once_an_hour",
            ),
        ),
    ),
    BacklogRow(
        fault="a queue that forwards its messages, without Manage",
        at_first='with Listen left out; without it used, and the status says "not verified"',
        then="run `twinbus doctor` with Manage",
        shown_by=(named(DRIFTED, "test_with_listen_sessions_and_forwarding_are_found_at_pairing"),),
    ),
    BacklogRow(
        fault="a right on the secondary is missing at the pairing, Listen for `enable_syphon` too",
        at_first="`MissingRightError` names the right",
        then="",
        shown_by=(
            named(
                LATE,
                "test_a_missing_listen_right_fails_the_pairing_of_a_syphon",
            ),
            named(TIMES, "test_at_pairing_a_missing_right_fails_at_once"),
        ),
    ),
    BacklogRow(
        fault="a right on the secondary goes missing later",
        at_first="queues in use stay in use; event `RightMissing`",
        then="found within 60 s of the grant",
        shown_by=(
            named(TIMES, "test_a_right_that_goes_missing_later_is_an_event_and_ends_nothing"),
            named(TIMES, "test_queues_whose_hand_over_failed_for_a_right_are_handed_over_later"),
        ),
    ),
)


def markdown() -> str:
    """The rows as the page has them."""
    lines = ["| fault | at first | then |", "|---|---|---|"]
    lines += [f"| {row.fault} | {row.at_first} | {row.then} |" for row in BACKLOG_ROWS]
    return "\n".join(lines) + "\n"
