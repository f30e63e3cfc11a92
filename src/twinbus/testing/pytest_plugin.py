"""Fixtures for tests of applications that use Service Bus (docs/testing.md).

    @pytest.mark.service_bus("orders", topics={"events": ["audit"]})
    def test_an_order_is_sent(service_bus: LocalNamespace, sent_messages: SentMessages) -> None:
        place_order(service_bus.connection_string, "order 1")
        assert [str(message) for message in sent_messages("orders")] == ["order 1"]

    service_bus          a namespace of this test, with the queues and topics of the mark
    paired_service_bus   the same namespace as a primary, and a secondary
    outage               an outage of `service_bus` for a block: kill, hang, throttle, refuse, Fault
    sent_messages        what was sent to a queue or topic of `service_bus`

pytest loads this module in every run, so it imports the broker only when a test uses a fixture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from twinbus.testing.local_namespace import LocalNamespace, LocalPair, SentMessages
    from twinbus.testing.outages import Outage
    from twinbus.testing.proxied_namespace import ProxiedNamespace

UPSTREAM = "TWINBUS_UPSTREAM"
"""The variable with the connection string of a real namespace to test with."""

MARK = "service_bus"
MARK_LINE = f"{MARK}(*queues, topics={{name: [subscriptions]}}): entities of the fixture {MARK}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK_LINE)


@pytest.fixture
def service_bus(
    request: pytest.FixtureRequest,
) -> Iterator[LocalNamespace | ProxiedNamespace]:
    """A namespace in memory with the entities that marks, or an indirect parameter, declare.

    With TWINBUS_UPSTREAM the namespace of that connection string, behind a fault proxy; it must
    have the entities already.
    """
    from twinbus.testing import LocalNamespace, ProxiedNamespace

    queues, topics = _declared(request)
    if upstream := os.environ.get(UPSTREAM):
        with ProxiedNamespace(upstream) as proxied:
            yield proxied
        return
    with LocalNamespace("primary") as namespace:
        for path in queues:
            namespace.create_queue(path)
        for path, subscriptions in topics.items():
            namespace.create_topic(path, *subscriptions)
        yield namespace


@pytest.fixture
def paired_service_bus(service_bus: LocalNamespace | ProxiedNamespace) -> Iterator[LocalPair]:
    """The namespace of `service_bus` as a primary, and a secondary without entities."""
    from twinbus.testing import LocalNamespace, LocalPair

    with LocalNamespace("secondary") as secondary:
        yield LocalPair(cast("LocalNamespace", service_bus), secondary)


@pytest.fixture
def outage(service_bus: LocalNamespace | ProxiedNamespace) -> Outage:
    """Outages of `service_bus`: `with outage("kill"): ...`."""
    return service_bus.outage


@pytest.fixture
def sent_messages(service_bus: LocalNamespace | ProxiedNamespace) -> SentMessages:
    """What was sent to `service_bus`: `sent_messages("orders")`."""
    from twinbus.testing import ProxiedNamespace

    if isinstance(service_bus, ProxiedNamespace):
        pytest.skip(f"sent_messages reads the log of a namespace in memory; unset {UPSTREAM}")
    return service_bus.sent


def _declared(request: pytest.FixtureRequest) -> tuple[list[str], dict[str, list[str]]]:
    """Return the queues and topics for a test, each once; marks of its module and class count."""
    queues: list[str] = list(getattr(request, "param", ()))
    topics: dict[str, list[str]] = {}
    for mark in request.node.iter_markers(MARK):
        unknown = sorted(mark.kwargs.keys() - {"topics"})
        if unknown or not all(isinstance(path, str) for path in mark.args):
            raise pytest.UsageError(f"{request.node.nodeid}: the mark is {MARK_LINE}")
        queues += mark.args
        for path, subscriptions in mark.kwargs.get("topics", {}).items():
            topics.setdefault(path, []).extend(subscriptions)
    return list(dict.fromkeys(queues)), topics
