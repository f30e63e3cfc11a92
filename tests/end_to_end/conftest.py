"""Brokers that several end-to-end tests serve in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.hand_made_world import ENTITIES, KEY, Sides
from tests.official_sdk import administration
from tests.processes import ServedBroker


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[tuple[ServedBroker, ServedBroker]]:
    """A primary that has the queue `orders`, and a secondary, each in a process of its own."""
    with (
        ServedBroker(tmp_path / "primary", "contoso") as primary,
        ServedBroker(tmp_path / "secondary", "contoso-dr") as secondary,
    ):
        with administration(primary.connection_string()) as admin:
            admin.create_queue("orders")
        yield primary, secondary


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """Both namespaces in one process, which the tests of a module share; the first has entities."""
    rules = {"sender": "Send", "listener": "Listen", "both": "Send,Listen"}
    options = [word for rule, to in rules.items() for word in ("--rule", f"{rule}:{KEY}:{to}")]
    names = ("contoso", "contoso-dr")
    directory = tmp_path_factory.mktemp("broker")
    with ServedBroker(directory, *names, ephemeral=True, options=tuple(options)) as served:
        with administration(served.connection_string("contoso")) as admin:
            for entity in ENTITIES:
                admin.create_queue(entity)
        yield served


@pytest.fixture
def sides(broker: ServedBroker, request: pytest.FixtureRequest) -> Sides:
    """The namespaces of `broker`, under a label of the test's own."""
    return Sides(broker, request.node.name)
