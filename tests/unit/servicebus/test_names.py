"""Paths of entities, and addresses as clients of several languages write them."""

from __future__ import annotations

import pytest

from twinbus.servicebus.names import (
    ADDRESS_MAX,
    dead_letter_path,
    entity_address,
    entity_of,
    subscription_path,
)
from twinbus.servicebus.names import transfer_dead_letter_path as transfer_path


@pytest.mark.parametrize(
    ("path", "entity"),
    [
        ("orders", "orders"),
        ("team/orders", "team/orders"),
        (dead_letter_path("team/orders"), "team/orders"),
        (transfer_path("orders"), "orders"),
        ("orders/$management", "orders"),
        ("orders/$deadletterqueue/$management", "orders"),
        (subscription_path("news", "all"), "news"),
        ("team/news/subscriptions/all/$DeadLetterQueue", "team/news"),
        ("subscriptions", "subscriptions"),
        ("$cbs", "$cbs"),
    ],
)
def test_the_entity_of_a_path(path: str, entity: str) -> None:
    assert entity_of(path) == entity


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("orders", "orders"),
        ("/orders", "orders"),
        ("amqps://host:5672/orders", "orders"),
        ("sb://localhost:5692/#contoso/orders", "orders"),
        ("sb://localhost:5692/#contoso/news/Subscriptions/a?x=y", "news/Subscriptions/a"),
        ("sb://localhost:5692/#contoso", ""),
        # A path of its own is the path: another one behind it does not count.
        ("sb://localhost:5692/orders#contoso/other", "orders"),
        ("sb://localhost:5692/orders?x#contoso/other", "orders"),
        ("amqps://[x", "amqps://[x"),
    ],
)
def test_the_path_of_an_address(address: str, path: str) -> None:
    assert entity_address(address) == path


def test_a_long_address_is_not_taken_apart_as_what_does_so_would_remember_it() -> None:
    start = "sb://host/"
    longest = start + "x" * (ADDRESS_MAX - len(start))
    assert entity_address(longest) == longest.removeprefix(start)
    assert entity_address(longest + "x") == longest + "x"
