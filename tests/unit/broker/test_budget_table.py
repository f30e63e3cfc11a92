"""The table of budgets in docs/security.md says what the code has, and each cell has its test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from twinbus.amqp.connection import CHANNEL_MAX
from twinbus.broker import budgets
from twinbus.broker.access import STRANGERS_MAX
from twinbus.broker.descriptions import QueueDescription, TopicDescription
from twinbus.broker.engine.topic import ACTION_RULES_MAX, RULES_MAX
from twinbus.broker.links import client_limits
from twinbus.broker.links.context import REPLIES_MAX
from twinbus.broker.links.transactions import OPEN_MAX
from twinbus.broker.profile import LAPTOP
from twinbus.broker.sas import GRANTS_MAX
from twinbus.gateway.node_requests import UNANSWERED_MAX
from twinbus.gateway.primary_connections import CONNECTIONS_MAX
from twinbus.gateway.sending import PENDING_BYTES_MAX

ROOT = Path(__file__).parents[3]
TABLE_HEAD = "| who | bytes | objects |"
KB, MB = 1024, 1024 * 1024

TESTS = Path("tests/unit/broker")
LIMITS = "links/test_client_limits.py"
BUDGETS = "test_budgets.py"
UNREAD = "links/test_unread.py"
ACCESS = "test_access.py"
GATEWAY = "../gateway/test_relayed_links.py"
STRANGER = (LIMITS, "test_a_stranger_that_takes_too_much_is_closed_with_one_line_in_the_log")
ADDRESS = (ACCESS, "test_strangers_are_bounded_for_each_address_and_leave_room_for_others")
LINKS = (BUDGETS, "test_links_and_sessions_of_a_connection_are_bounded")
MANY_LINKS = (BUDGETS, "test_links_and_sessions_of_a_rule_and_of_the_process_are_bounded")
TRANSACTIONS = ("links/test_transactions.py", "test_limits_name_themselves")
RULES = "engine/test_topic_rules.py"

FIGURES: dict[tuple[str, str], list[tuple[int | None, tuple[str, str]]]] = {
    ("a connection without a token", "bytes"): [
        (client_limits.RECEIVED_BYTES_MAX // KB, STRANGER),
        (
            client_limits.FRAME_BYTES_MAX // KB,
            (LIMITS, "test_a_strangers_frame_is_smaller_than_what_was_announced"),
        ),
    ],
    ("a connection without a token", "objects"): [
        (client_limits.SESSIONS_MAX, STRANGER),
        (client_limits.LINKS_MAX, STRANGER),
    ],
    ("an address without a token", "bytes"): [(None, ADDRESS)],
    ("an address without a token", "objects"): [
        (STRANGERS_MAX, ADDRESS),
        (
            None,
            (
                ACCESS,
                "test_one_address_without_a_token_leaves_room_however_few_connections_there_are",
            ),
        ),
    ],
    ("a connection", "bytes"): [
        (
            budgets.CONNECTION_BYTES // MB,
            (BUDGETS, "test_deliveries_that_never_end_close_the_connection_at_its_limit"),
        ),
        (budgets.TRANSACTION_BYTES // MB, TRANSACTIONS),
        (
            client_limits.OUTPUT_BYTES_MAX // MB,
            (LIMITS, "test_a_huge_credit_is_served_in_pieces_and_served_whole"),
        ),
        (
            client_limits.BLOCKED_BYTES_MAX // MB,
            (UNREAD, "test_a_client_without_windows_gets_some_deliveries_and_no_more"),
        ),
    ],
    ("a connection", "objects"): [
        (budgets.CONNECTION_SESSIONS, LINKS),
        (budgets.CONNECTION_LINKS, LINKS),
        (GRANTS_MAX, (BUDGETS, "test_a_connection_keeps_its_latest_tokens")),
        (OPEN_MAX, TRANSACTIONS),
        (
            REPLIES_MAX,
            (GATEWAY, "test_answers_that_a_client_does_not_read_are_let_go_with_their_link"),
        ),
        (UNANSWERED_MAX, (GATEWAY, "test_a_request_too_many_is_refused_and_not_sent")),
    ],
    ("a rule or bearer token", "bytes"): [
        (
            budgets.RULE_BYTES // MB,
            (BUDGETS, "test_the_connections_of_one_rule_share_its_bytes_and_others_go_on"),
        )
    ],
    ("a rule or bearer token", "objects"): [
        (None, (BUDGETS, "test_the_connections_of_one_rule_leave_room_for_others")),
        (budgets.RULE_SESSIONS, MANY_LINKS),
        (budgets.RULE_LINKS, MANY_LINKS),
    ],
    ("an entity", "bytes"): [
        (
            QueueDescription().max_size_mb,
            (
                "engine/test_limits.py",
                "test_small_messages_are_refused_when_their_memory_reaches_the_quota",
            ),
        )
    ],
    ("an entity", "objects"): [
        (LAPTOP.receivers_max or 0, (BUDGETS, "test_an_entity_has_some_thousand_receivers")),
        (RULES_MAX, (RULES, "test_a_subscription_has_as_many_rules_as_in_azure_and_no_more")),
        (ACTION_RULES_MAX, (RULES, "test_rules_with_an_action_are_few")),
    ],
    ("the process", "bytes"): [
        (
            budgets.PROCESS_BYTES // MB,
            (BUDGETS, "test_a_limit_of_the_process_holds_for_all_rules_together"),
        ),
        (
            budgets.UNREAD_BYTES // MB,
            (UNREAD, "test_the_client_that_left_most_unread_is_closed_with_the_reason"),
        ),
        (
            budgets.UNREAD_BYTES_EACH // KB,
            (UNREAD, "test_clients_that_read_nothing_leave_room_for_one_that_comes_later"),
        ),
        (
            PENDING_BYTES_MAX // MB,
            ("../gateway/test_shares.py", "test_a_client_alone_is_stopped_at_half_of_the_bound"),
        ),
    ],
    ("the process", "objects"): [
        (
            budgets.CONNECTIONS_MAX,
            (ACCESS, "test_connections_in_all_are_bounded_whoever_opens_them"),
        ),
        (budgets.PROCESS_SESSIONS, MANY_LINKS),
        (budgets.PROCESS_LINKS, MANY_LINKS),
        (
            CONNECTIONS_MAX,
            (
                "../gateway/test_primary_connections.py",
                "test_clients_beyond_the_bound_share_those_that_fewest_have",
            ),
        ),
    ],
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
    said = [int(each.replace(",", "")) for each in re.findall(r"\d[\d,]*", cells()[cell])]
    assert said == [figure for figure, _ in FIGURES[cell] if figure is not None]
    for _, (file, name) in FIGURES[cell]:
        source = (ROOT / TESTS / file).read_text()
        assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), name


def test_figures_that_must_agree_do() -> None:
    assert CHANNEL_MAX + 1 == budgets.CONNECTION_SESSIONS
    assert TopicDescription().max_size_mb == QueueDescription().max_size_mb
