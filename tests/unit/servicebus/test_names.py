"""Paths of entities, and of what is below them."""

from __future__ import annotations

import pytest

from twinbus.servicebus.names import dead_letter_path, entity_of, subscription_path
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
