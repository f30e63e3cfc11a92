"""Paths of the administration API: each names one node, and lists come page by page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.broker.admin.entities import (
    PAGE_MAX,
    Address,
    AdminNode,
    ListPage,
    parse_address,
    parse_page,
    render_path,
)
from twinbus.broker.refusals import ArgumentInvalid, ArgumentOutOfRange


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("/", Address(AdminNode.ROOT)),
        ("/$namespaceinfo", Address(AdminNode.NAMESPACE)),
        ("/%24namespaceinfo", Address(AdminNode.NAMESPACE)),
        ("/$Resources/queues", Address(AdminNode.QUEUES)),
        ("/$resources/Topics", Address(AdminNode.TOPICS)),
        ("/orders", Address(AdminNode.ENTITY, "orders")),
        ("/a%2Fb", Address(AdminNode.ENTITY, "a/b")),
        ("/a/b", Address(AdminNode.ENTITY, "a/b")),
        ("/t/subscriptions", Address(AdminNode.SUBSCRIPTIONS, "t")),
        ("/a%2Ft/Subscriptions/s", Address(AdminNode.SUBSCRIPTION, "a/t", "s")),
        ("/a/t/subscriptions/s/rules", Address(AdminNode.RULES, "a/t", "s")),
        ("/t/subscriptions/s/rules/%24Default", Address(AdminNode.RULE, "t", "s", "$Default")),
        ("/subscriptions", Address(AdminNode.ENTITY, "subscriptions")),
        # As the JavaScript SDK asks for the lists.
        ("/t/Subscriptions/", Address(AdminNode.SUBSCRIPTIONS, "t")),
        ("/t/Subscriptions/s/Rules/", Address(AdminNode.RULES, "t", "s")),
    ],
)
def test_a_path_names_a_node(path: str, address: Address) -> None:
    assert parse_address(path) == address


@pytest.mark.parametrize("path", ["/t/$DeadLetterQueue", "/a/b/%24management", "/q/$Transfer/x"])
def test_a_part_of_an_entity_has_no_description(path: str) -> None:
    with pytest.raises(ArgumentInvalid, match="part of an entity"):
        parse_address(path)


@pytest.mark.parametrize(
    "path", ["/t/subscriptions//", "/t/subscriptions/s/rules//", "//subscriptions/s"]
)
def test_an_empty_name_is_refused(path: str) -> None:
    with pytest.raises(ArgumentInvalid, match="empty"):
        parse_address(path)


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,10}", fullmatch=True).filter(
    lambda name: name.lower() not in ("subscriptions", "rules")
)


@given(names, st.none() | names, st.none() | names)
def test_every_name_finds_its_way_back(
    entity: str, subscription: str | None, rule: str | None
) -> None:
    if subscription is None:
        address = Address(AdminNode.ENTITY, entity)
    elif rule is None:
        address = Address(AdminNode.SUBSCRIPTION, entity, subscription)
    else:
        address = Address(AdminNode.RULE, entity, subscription, rule)
    assert parse_address(render_path(address)) == address


def test_the_path_of_the_default_rule_has_its_name_as_it_is() -> None:
    rule = Address(AdminNode.RULE, "t", "s", "$Default")
    assert render_path(rule) == "/t/Subscriptions/s/Rules/$Default"


def test_pages_follow_each_other() -> None:
    page = parse_page({"$skip": "5", "$top": "10"})
    assert page == ListPage(5, 10)
    assert page.render() == "$skip=5&$top=10"
    assert parse_page({}) == ListPage(0, 100)
    assert parse_page({"$top": "999999"}).top == PAGE_MAX


@pytest.mark.parametrize(
    "query", [{"$skip": "-1"}, {"$top": "-1"}, {"$top": "many"}, {"$skip": str(2**31)}]
)
def test_a_page_that_cannot_be_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(
        (ArgumentInvalid, ArgumentOutOfRange), match=next(iter(query)).replace("$", r"\$")
    ):
        parse_page(query)
