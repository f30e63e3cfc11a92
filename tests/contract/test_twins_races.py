"""Someone else writes to the secondary while `twinbus twins` works: what is theirs stays theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import SqlRuleFilter

from tests.contract.pairs import embedded
from tests.contract.twin_world import (
    COULD_NOT,
    MARK,
    Terminal,
    both,
    both_strings,
    rules_of,
    states,
    terminal,
)
from twinbus.servicebus.twins import UNFINISHED_MARK

pytestmark = pytest.mark.contract

broker = embedded(queues=())
texts = both_strings()
typed = terminal()

Meanwhile = Callable[..., None]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """`meanwhile("get_topic", act, call=2)`: just before a command calls it the second time."""

    def arrange(method: str, act: Callable[[], object], call: int = 1) -> None:
        asked: Callable[..., Awaitable[Any]] = getattr(ServiceBusAdministrationClient, method)
        calls = 0

        async def ask(client: Any, *given: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                await asyncio.to_thread(act)
            return await asked(client, *given, **options)

        monkeypatch.setattr(ServiceBusAdministrationClient, method, ask)

    return arrange


@pytest.mark.parametrize(
    ("method", "call", "says"),
    [
        ("create_topic", 1, "another process created events just now"),
        ("get_topic", 1, "events does not have the mark of a twin any more"),
        ("get_topic", 2, "events does not have the mark of a twin any more"),
    ],
    ids=["before it is created", "before its subscriptions are", "before it is marked"],
)
def test_a_topic_that_became_someone_elses_is_not_marked(
    method: str,
    call: int,
    says: str,
    typed: Terminal,
    texts: tuple[str, str],
    meanwhile: Meanwhile,
) -> None:
    with both(texts) as (primary, secondary):
        primary.create_topic("events")
        primary.create_subscription("events", "all")

        def take() -> None:
            if method != "create_topic":
                secondary.delete_topic("events")
            secondary.create_topic("events", user_metadata="theirs")
            secondary.create_subscription("events", "their-own")

        meanwhile(method, take, call)
        done = typed("twins", "create", "events", "--output", "json")
        assert (done.status, states(done)) == (COULD_NOT, {"events": "failed"})
        assert says in done.out
        assert secondary.get_topic("events").user_metadata == "theirs"
        assert [one.name for one in secondary.list_subscriptions("events")] == ["their-own"]


def test_a_marked_topic_that_lost_its_mark_gets_no_subscription(
    typed: Terminal, texts: tuple[str, str], meanwhile: Meanwhile
) -> None:
    with both(texts) as (primary, secondary):
        primary.create_topic("events")
        assert typed("twins", "create", "events").status == 0
        primary.create_subscription("events", "late")

        def unmark() -> None:
            topic = secondary.get_topic("events")
            topic.user_metadata = "theirs"
            secondary.update_topic(topic)

        meanwhile("get_topic", unmark)
        done = typed("twins", "create", "events", "--output", "json")
        assert (done.status, states(done)) == (COULD_NOT, {"events": "failed"})
        assert list(secondary.list_subscriptions("events")) == []


@pytest.mark.parametrize("method", ["create_subscription", "get_subscription"])
@pytest.mark.parametrize("metadata", ["theirs", f"{UNFINISHED_MARK}contoso", MARK])
def test_a_subscription_that_someone_else_made_is_ours_only_with_our_mark(
    method: str,
    metadata: str,
    typed: Terminal,
    texts: tuple[str, str],
    meanwhile: Meanwhile,
) -> None:
    with both(texts) as (primary, secondary):
        primary.create_topic("events")
        primary.create_subscription("events", "all")

        def take() -> None:
            if method == "get_subscription":
                secondary.delete_subscription("events", "all")
            secondary.create_subscription("events", "all", user_metadata=metadata)
            secondary.create_rule("events", "all", "blue", filter=SqlRuleFilter("color = 'blue'"))

        meanwhile(method, take)
        done = typed("twins", "create", "events", "--output", "json")
        found = secondary.get_subscription("events", "all").user_metadata
        if metadata != "theirs":
            # Another process that runs the same command.
            assert (done.status, states(done), found) == (0, {"events": "created"}, MARK)
            return
        assert (done.status, states(done), found) == (COULD_NOT, {"events": "failed"}, "theirs")
        assert "subscription all of events does not have the mark of a twin" in done.out
        assert set(rules_of(secondary, "events", "all")) == {"$Default", "blue"}
        assert secondary.get_topic("events").user_metadata == f"{UNFINISHED_MARK}contoso"


def test_an_entity_that_changed_while_a_person_was_asked_is_not_adopted(
    typed: Terminal, texts: tuple[str, str], meanwhile: Meanwhile
) -> None:
    with both(texts) as (primary, secondary):
        primary.create_queue("orders")
        secondary.create_queue("orders", user_metadata="ours")

        def change() -> None:
            queue = secondary.get_queue("orders")
            queue.user_metadata = "twinbus-twin-of:fabrikam"
            secondary.update_queue(queue)

        meanwhile("get_queue", change)
        done = typed("twins", "adopt", "orders", "--yes")
        assert done.status == COULD_NOT
        assert "another process changed orders just now" in done.err
        assert secondary.get_queue("orders").user_metadata == "twinbus-twin-of:fabrikam"
