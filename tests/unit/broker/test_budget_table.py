"""The tables of limits in docs/security.md say what the code has, and each figure has its test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from twinbus.amqp.connection import CHANNEL_MAX, MAX_FRAME_BYTES
from twinbus.amqp.decoding import ALIKE_KEYS_MAX, NESTING_MAX
from twinbus.broker import budgets
from twinbus.broker.access import CUT_OFF_S, OPEN_LIMIT_S, STRANGERS_MAX, TOKEN_LIMIT_S
from twinbus.broker.admin.atom import MARKUP_MAX
from twinbus.broker.descriptions import QueueDescription, TopicDescription
from twinbus.broker.engine.settlement import OVERRIDE_BYTES_MAX
from twinbus.broker.engine.topic import (
    ACTION_RULES_MAX,
    RULE_BYTES_MAX,
    RULE_PROPERTIES_MAX,
    RULES_MAX,
)
from twinbus.broker.filters.values import PATTERN_LENGTH_MAX, RULE_WORK_MAX, WILDCARD_WORK_MAX
from twinbus.broker.http import BODY_BYTES_MAX
from twinbus.broker.http_connection import HEAD_LINES_MAX
from twinbus.broker.links import client_limits
from twinbus.broker.links.context import REPLIES_MAX
from twinbus.broker.links.requests import CBS_REQUEST_BYTES_MAX, REQUEST_BYTES_MAX
from twinbus.broker.links.transactions import OPEN_MAX
from twinbus.broker.listener import SNIFFING_MAX
from twinbus.broker.profile import LAPTOP
from twinbus.broker.sas import AUDIENCE_MAX, AUDIENCE_PATH_MAX, GRANTS_MAX
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


REQUESTS_HEAD = "| time and single requests | limit | beyond it |"
LISTENER = "../../contract/test_listener.py"
FILTERS = "filters/test_filters.py"

SINGLE: dict[str, list[tuple[int | None, tuple[str, str]]]] = {
    "connections that have sent nothing yet; TLS handshakes under way": [
        (
            SNIFFING_MAX,
            (LISTENER, "test_silent_connections_are_bounded_and_the_longest_silent_goes_first"),
        ),
        (SNIFFING_MAX, (LISTENER, "test_an_address_with_half_handshakes_locks_no_other_out")),
    ],
    "until the AMQP connection is open, and for one HTTP request to arrive": [
        (int(OPEN_LIMIT_S), (LIMITS, "test_a_client_that_never_opens_is_cut_off")),
        (
            None,
            ("../../contract/test_websocket.py", "test_an_http_request_that_dawdles_is_cut_off"),
        ),
    ],
    "from there to the first valid token": [
        (int(TOKEN_LIMIT_S), (LIMITS, "test_a_client_that_puts_no_token_is_cut_off"))
    ],
    "to read what was written to a connection that the broker has closed": [
        (int(CUT_OFF_S), (LIMITS, "test_a_client_that_closes_and_reads_nothing_is_cut_off"))
    ],
    "`$management` before the first valid token": [
        (None, (LIMITS, "test_management_is_closed_to_strangers"))
    ],
    "pongs for a WebSocket that does not read": [
        (
            # Where asyncio pauses a writer.
            64,
            (
                "../../contract/test_websocket.py",
                "test_a_client_that_does_not_read_its_pongs_gets_no_more_of_them",
            ),
        )
    ],
    "path of the audience in a token; its name on `$cbs`": [
        (
            AUDIENCE_PATH_MAX,
            (
                ACCESS,
                "test_an_audience_that_no_address_has_is_refused_before_any_rule_is_looked_for",
            ),
        ),
        (AUDIENCE_MAX, (ACCESS, "test_a_name_of_a_token_is_bounded")),
    ],
    "request on `$cbs`; on `$management`": [
        (CBS_REQUEST_BYTES_MAX // KB, (LIMITS, "test_a_request_on_cbs_is_small")),
        (
            REQUEST_BYTES_MAX // MB,
            (BUDGETS, "test_a_request_is_bounded_by_the_messages_of_its_entity"),
        ),
    ],
    "a frame after the token; keys of one map that hash alike; nesting of values": [
        (
            MAX_FRAME_BYTES // KB,
            (LIMITS, "test_a_client_with_a_token_has_the_announced_limits"),
        ),
        (
            ALIKE_KEYS_MAX,
            (
                "../amqp/test_before_the_answer.py",
                "test_keys_that_all_hash_alike_cost_no_more_than_others",
            ),
        ),
        (
            NESTING_MAX,
            ("../amqp/test_types.py", "test_nesting_is_bounded_for_every_kind_of_bracket"),
        ),
    ],
    "one rule as it is stored; its properties or parameters": [
        (RULE_BYTES_MAX // KB, (RULES, "test_a_rule_is_small")),
        (RULE_PROPERTIES_MAX, (RULES, "test_a_rule_is_small")),
    ],
    "work of all rules of a subscription for one message": [
        (
            RULE_WORK_MAX // 10**6,
            (RULES, "test_the_rules_of_a_subscription_have_one_budget_for_a_message"),
        )
    ],
    "properties, reason and description that receivers give to one message": [
        (
            OVERRIDE_BYTES_MAX // KB,
            ("engine/test_queue.py", "test_receivers_cannot_make_a_message_grow_without_bound"),
        )
    ],
    "LIKE pattern; comparisons to find a part of it that has wildcards": [
        (PATTERN_LENGTH_MAX, (FILTERS, "test_like_refuses_work_without_bound_and_says_why")),
        (WILDCARD_WORK_MAX // 10**6, (FILTERS, "test_a_hostile_like_pattern_is_not_slow")),
    ],
    "header lines of an HTTP request; its body, read with a valid token only": [
        (
            HEAD_LINES_MAX,
            ("test_http_turns.py", "test_a_head_of_too_many_lines_is_refused_before_it_is_parsed"),
        ),
        (
            BODY_BYTES_MAX // MB,
            ("../../contract/test_admin_http.py", "test_bad_requests_are_refused_in_xml"),
        ),
        (
            MARKUP_MAX,
            (
                "admin/test_atom.py",
                "test_a_body_of_thousands_of_tags_is_refused_before_it_is_parsed",
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


def limits() -> dict[str, str]:
    """The rows of the second table: the limit of each, in figures that tests can hold."""
    text = (ROOT / "docs/security.md").read_text()
    rows = text[text.index(REQUESTS_HEAD) :].partition("\n\n")[0].splitlines()[2:]
    split = [
        re.sub(r" \([^)]*\)|, about .*? s\b", "", row).strip("| ").split(" | ") for row in rows
    ]
    return {what: limit for what, limit, _ in split}


def test_every_cell_of_the_table_is_checked() -> None:
    assert cells().keys() == FIGURES.keys()


@pytest.mark.parametrize("cell", FIGURES, ids=" ".join)
def test_a_cell_says_the_figures_of_the_code_and_has_its_test(cell: tuple[str, str]) -> None:
    check_said(cells()[cell], FIGURES[cell])


def check_said(text: str, figures: list[tuple[int | None, tuple[str, str]]]) -> None:
    said = [int(each.replace(",", "")) for each in re.findall(r"\d[\d,]*", text)]
    assert said == [figure for figure, _ in figures if figure is not None]
    for _, (file, name) in figures:
        source = (ROOT / TESTS / file).read_text()
        assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), name


def test_every_row_of_the_second_table_is_checked() -> None:
    assert limits().keys() == SINGLE.keys()


@pytest.mark.parametrize("row", SINGLE)
def test_a_row_says_the_figures_of_the_code_and_has_its_test(row: str) -> None:
    check_said(limits()[row], SINGLE[row])


def test_figures_that_must_agree_do() -> None:
    assert CHANNEL_MAX + 1 == budgets.CONNECTION_SESSIONS
    assert TopicDescription().max_size_mb == QueueDescription().max_size_mb
