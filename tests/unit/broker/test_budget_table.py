"""The table of budgets in docs/security.md says what the code has, and each cell has its test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from twinbus.amqp.connection import CHANNEL_MAX
from twinbus.broker import budgets
from twinbus.broker.access import CONNECTIONS_MAX, STRANGERS_MAX
from twinbus.broker.descriptions import QueueDescription, TopicDescription
from twinbus.broker.engine.topic import ACTION_RULES_MAX, RULES_MAX
from twinbus.broker.links import client_limits
from twinbus.broker.links.context import REPLIES_MAX
from twinbus.broker.links.transactions import OPEN_MAX
from twinbus.broker.profile import LAPTOP
from twinbus.broker.sas import GRANTS_MAX

ROOT = Path(__file__).parents[3]
TABLE_HEAD = "| who | bytes | objects |"
KB, MB = 1024, 1024 * 1024

TESTS = Path("tests/unit/broker")
LIMITS = "links/test_client_limits.py"
BUDGETS = "test_budgets.py"

FIGURES: dict[tuple[str, str], tuple[list[int], tuple[str, str]]] = {
    ("a connection without a token", "bytes"): (
        [client_limits.RECEIVED_BYTES_MAX // KB, client_limits.FRAME_BYTES_MAX // KB],
        (LIMITS, "test_a_stranger_that_takes_too_much_is_closed_with_one_line_in_the_log"),
    ),
    ("a connection without a token", "objects"): (
        [client_limits.SESSIONS_MAX, client_limits.LINKS_MAX],
        (LIMITS, "test_a_stranger_that_takes_too_much_is_closed_with_one_line_in_the_log"),
    ),
    ("an address without a token", "bytes"): (
        [],
        ("test_access.py", "test_strangers_are_bounded_for_each_address_and_leave_room_for_others"),
    ),
    ("an address without a token", "objects"): (
        [STRANGERS_MAX],
        ("test_access.py", "test_strangers_are_bounded_for_each_address_and_leave_room_for_others"),
    ),
    ("a connection", "bytes"): (
        [
            budgets.CONNECTION_BYTES // MB,
            budgets.TRANSACTION_BYTES // MB,
            client_limits.OUTPUT_BYTES_MAX // MB,
            client_limits.BLOCKED_BYTES_MAX // MB,
        ],
        (BUDGETS, "test_deliveries_that_never_end_close_the_connection_at_its_limit"),
    ),
    ("a connection", "objects"): (
        [
            budgets.CONNECTION_SESSIONS,
            budgets.CONNECTION_LINKS,
            LAPTOP.handle_max + 1,
            GRANTS_MAX,
            OPEN_MAX,
            REPLIES_MAX,
        ],
        (BUDGETS, "test_links_and_sessions_of_a_connection_are_bounded"),
    ),
    ("a rule or bearer token", "bytes"): (
        [budgets.RULE_BYTES // MB],
        (BUDGETS, "test_the_connections_of_one_rule_share_its_bytes_and_others_go_on"),
    ),
    ("a rule or bearer token", "objects"): (
        [budgets.RULE_CONNECTIONS, budgets.RULE_SESSIONS, budgets.RULE_LINKS],
        (BUDGETS, "test_the_connections_of_one_rule_leave_room_for_others"),
    ),
    ("an entity", "bytes"): (
        [QueueDescription().max_size_mb],
        (
            "engine/test_limits.py",
            "test_small_messages_are_refused_when_their_memory_reaches_the_quota",
        ),
    ),
    ("an entity", "objects"): (
        [LAPTOP.receivers_max or 0, RULES_MAX, ACTION_RULES_MAX],
        (BUDGETS, "test_an_entity_has_some_thousand_receivers"),
    ),
    ("the process", "bytes"): (
        [budgets.PROCESS_BYTES // MB],
        (BUDGETS, "test_a_limit_of_the_process_holds_for_all_rules_together"),
    ),
    ("the process", "objects"): (
        [CONNECTIONS_MAX, budgets.PROCESS_SESSIONS, budgets.PROCESS_LINKS],
        ("test_access.py", "test_connections_in_all_are_bounded_whoever_opens_them"),
    ),
}


def cells() -> dict[tuple[str, str], str]:
    """The cells of the table by who and what, without what stands in brackets."""
    text = (ROOT / "docs/security.md").read_text()
    rows = text[text.index(TABLE_HEAD) :].partition("\n\n")[0].splitlines()[2:]
    found: dict[tuple[str, str], str] = {}
    for row in rows:
        who, held, objects = re.sub(r" \([^)]*\)", "", row).strip("| ").split(" | ")
        found |= {(who, "bytes"): held, (who, "objects"): objects}
    return found


def test_every_cell_of_the_table_is_checked() -> None:
    assert cells().keys() == FIGURES.keys()


@pytest.mark.parametrize("cell", FIGURES, ids=" ".join)
def test_a_cell_says_the_figures_of_the_code_and_has_its_test(cell: tuple[str, str]) -> None:
    figures, (file, name) = FIGURES[cell]
    said = [int(each.replace(",", "")) for each in re.findall(r"\d[\d,]*", cells()[cell])]
    assert said == figures
    assert re.search(rf"^(async )?def {name}\(", (ROOT / TESTS / file).read_text(), re.MULTILINE)


def test_figures_that_must_agree_do() -> None:
    assert CHANNEL_MAX + 1 == budgets.CONNECTION_SESSIONS
    assert TopicDescription().max_size_mb == QueueDescription().max_size_mb
    assert budgets.RULE_CONNECTIONS < CONNECTIONS_MAX
