"""`twinbus verify`, the doctor's trials and a report's peek notice what is planted, and no more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.pairs import embedded
from tests.official_sdk import administration, client
from twinbus import EmbeddedBroker, Namespace
from twinbus.broker.profile import AZURE_STANDARD
from twinbus.console import ATTENTION
from twinbus.console.doctor import commands as doctor_trials
from twinbus.console.doctor.rights import ExaminedPair, Finding, Level
from twinbus.console.output import Output
from twinbus.console.report.making import BacklogScan
from twinbus.console.verify import run
from twinbus.errors import SyphonError
from twinbus.pipeline.reports.documents import Sighting
from twinbus.transfer.sdk import to_backlog_message
from twinbus.verify import checks
from twinbus.verify.run import Likeness, VerifyPlan, verify
from twinbus.verify.scratch import PREFIX, ForeignEntities, clean, entities_of

pytestmark = pytest.mark.contract

PLANTED = replace(AZURE_STANDARD, handle_max=63)
"""A tier whose sessions have fewer links."""

SHORT = replace(AZURE_STANDARD, link_idle_s=2.0)
"""A tier that does not let a test wait for ten minutes."""

SAME, DIFFERENT, NOT_CHECKED = Likeness


broker = embedded("contoso", profile=AZURE_STANDARD, queues=())


def namespace_of(broker: EmbeddedBroker) -> Namespace:
    return Namespace.from_connection_string(broker.connection_string())


def test_the_command_finds_what_is_planted_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, facts = VerifyPlan(profile=AZURE_STANDARD, label="ci"), tmp_path / "facts"
    with EmbeddedBroker("other", profile=PLANTED) as other:
        sides = {"primary": namespace_of(other)}
        assert run(sides, plan, facts, Output.TEXT, is_clean=False) == ATTENTION
    said = capsys.readouterr().out
    assert "1 difference from azure-standard" in said
    assert "links of a session: 64, not 256" in said
    text = facts.read_text()
    assert "SAS_KEY_VALUE" not in said + text
    document = json.loads(text)
    assert document["left_behind"] == []
    assert 0 < document["operations_at_most"] <= 500
    assert document["cost_at_most_usd"] > 0
    found = {
        (fact["side"], fact["check"]): fact["differs"]
        for fact in document["facts"]
        if fact["likeness"] == "different"
    }
    assert found == {("primary", "link limits"): ["links of a session"]}
    [surprise] = [fact for fact in document["facts"] if fact["differs"]]
    # Of the SDK's own link, and of the connection that asked for the limit.
    assert any("AttachFrame" in frame for frame in surprise["frames"])
    assert any(f.startswith("<- Begin(") and "handle_max=63" in f for f in surprise["frames"])
    not_checked = {f["check"] for f in document["facts"] if f["likeness"] == "not checked"}
    assert not_checked == {"handle-max", "throttling", "idle detach"}


async def test_one_link_too_many_is_tried_and_its_frames_are_kept() -> None:
    plan = VerifyPlan(profile=AZURE_STANDARD, is_intrusive=True, only=frozenset({"handle-max"}))
    with EmbeddedBroker("many", profile=AZURE_STANDARD) as broker:
        [same] = (await verify({"many": namespace_of(broker)}, plan)).facts
    with EmbeddedBroker("few", profile=PLANTED) as broker:
        [other] = (await verify({"few": namespace_of(broker)}, plan)).facts
    assert (same.likeness, same.frames) == (SAME, ())
    assert (same.observed["answer"], same.observed["condition"]) == (
        "closed",
        "amqp:connection:framing-error",
    )
    assert (other.likeness, other.differs) == (DIFFERENT, ("text",))
    assert any(f.startswith("-> Attach(") and "handle=64" in f for f in other.frames)
    assert any(f.startswith("<- Close(") and "framing-error" in f for f in other.frames)
    # The token is in the payload of a transfer.
    assert not any("SharedAccessSignature" in frame for frame in other.frames)


async def test_transactions_are_compared(broker: EmbeddedBroker) -> None:
    plan = VerifyPlan(profile=AZURE_STANDARD, only=frozenset({"transactions"}))
    [fact] = (await verify({"primary": namespace_of(broker)}, plan)).facts
    assert fact.likeness is SAME
    told = dict(fact.observed)
    answers = {key: value.pop("text") for key, value in told.items() if isinstance(value, dict)}
    rolled_back, unknown = "amqp:transaction:rollback", "amqp:transaction:unknown-id"
    assert told == {
        "send": "transactional Accepted",
        "send to another queue": "transactional Accepted",
        "commit": "Accepted",
        "commit again": {"condition": unknown},
        "send after the commit": {"condition": unknown},
        "send to be undone": "transactional Accepted",
        "roll back": "Accepted",
        "send too much": {"condition": "amqp:link:message-size-exceeded"},
        "commit after a refusal": {"condition": rolled_back},
        "send a scheduled message": "transactional Accepted",
        "commit a scheduled message": "Accepted",
        "found": [
            ["x", "ServiceBusMessageState.ACTIVE"],
            ["later", "ServiceBusMessageState.SCHEDULED"],
        ],
    }
    text = "The transaction ID is not open on this connection"
    assert answers["commit again"].startswith(text)


async def test_a_key_that_may_only_listen_receives_and_is_refused_a_send(
    broker: EmbeddedBroker,
) -> None:
    plan = VerifyPlan(profile=AZURE_STANDARD, only=frozenset({"listen-only key"}))
    [fact] = (await verify({"primary": namespace_of(broker)}, plan)).facts
    assert fact.likeness is SAME
    assert fact.observed["send"]["error"] == "ServiceBusAuthorizationError"
    assert "Send" in fact.observed["send"]["text"]
    assert fact.observed["receive"] == {"error": None}


@pytest.mark.soak
async def test_a_namespace_that_does_not_throttle_is_found() -> None:
    only = frozenset({"throttling"})
    plan = VerifyPlan(profile=AZURE_STANDARD, budget=9_000, is_intrusive=True, only=only)
    with EmbeddedBroker("mild", profile=replace(AZURE_STANDARD, credits_per_s=None)) as mild:
        [fact] = (await verify({"mild": namespace_of(mild)}, plan)).facts
    assert (fact.likeness, fact.observed) == (DIFFERENT, {"refusal": None})
    assert fact.expected["refusal"]["error"] == "ServiceBusServerBusyError"


async def test_an_idle_link_is_detached_as_by_the_tier() -> None:
    only = frozenset({"idle detach"})
    plan = VerifyPlan(profile=SHORT, is_intrusive=True, only=only)
    with EmbeddedBroker("contoso", profile=SHORT) as idle:
        [fact] = (await verify({"primary": namespace_of(idle)}, plan)).facts
        assert await entities_of(namespace_of(idle)) == []
    assert (fact.likeness, fact.observed["detached"]) == (SAME, "amqp:link:detach-forced")


def test_the_command_finds_no_difference_where_there_is_none(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = VerifyPlan(profile=AZURE_STANDARD, budget=14)
    sides = {"primary": namespace_of(broker)}
    assert run(sides, plan, tmp_path / "facts", Output.TEXT, is_clean=False) == 0
    assert "0 differences from azure-standard" in capsys.readouterr().out


async def test_an_intrusive_run_refuses_a_namespace_with_entities_of_others(
    broker: EmbeddedBroker,
) -> None:
    broker.create_queue("orders")
    plan = VerifyPlan(profile=AZURE_STANDARD, is_intrusive=True)
    with pytest.raises(ForeignEntities, match="'orders'"):
        await verify({"primary": namespace_of(broker)}, plan)
    assert await entities_of(namespace_of(broker)) == [("queue", "orders")]


async def test_a_budget_is_not_exceeded_and_what_a_killed_run_left_is_cleaned(
    broker: EmbeddedBroker,
) -> None:
    broker.create_queue("orders")
    broker.create_queue(f"{PREFIX}killed-ghost")
    broker.create_topic(f"{PREFIX}killed-topic")
    plan = VerifyPlan(profile=AZURE_STANDARD, budget=5)
    report = await verify({"primary": namespace_of(broker)}, plan)
    assert report.operations <= 5
    judged = {fact.check: fact.likeness for fact in report.facts}
    assert judged["missing entity"] is SAME
    assert judged["sessions"] is NOT_CHECKED
    assert sorted(await clean(namespace_of(broker))) == [
        f"{PREFIX}killed-ghost",
        f"{PREFIX}killed-topic",
    ]
    assert await entities_of(namespace_of(broker)) == [("queue", "orders")]


two_namespaces = embedded(queues=(), scope="module")


def tried(two_namespaces: EmbeddedBroker, trial: Callable[..., Any]) -> Finding:
    """The one finding of a trial, after which no scratch entity is left."""
    sides = [two_namespaces.connection_string(name) for name in ("contoso", "contoso-dr")]

    async def examine() -> list[Finding]:
        primary, secondary = map(Namespace.from_connection_string, sides)
        patient = ExaminedPair(primary, secondary, count=2, entity=None)
        patient.manages |= {"primary": True, "secondary": True}
        first, second = map(doctor_trials.scratch_of, (primary, secondary))
        async with first, second:
            found: list[Finding] = await trial(patient, {"primary": first, "secondary": second})
        assert first.left_behind == second.left_behind == []
        return found

    (finding,) = asyncio.run(examine())
    for text in sides:
        with administration(text) as admin:
            assert [*admin.list_queues(), *admin.list_topics()] == []
    return finding


@pytest.fixture
def ping_as_any_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a ping that the broker does not know as one."""

    async def send(sender: Any) -> None:
        await sender.send_messages(ServiceBusMessage(b"", time_to_live=timedelta(seconds=1)))

    monkeypatch.setattr(checks, "send_ping", send)


@pytest.mark.usefixtures("ping_as_any_message")
def test_a_ping_that_is_delivered_is_seen_everywhere(two_namespaces: EmbeddedBroker) -> None:
    finding = tried(two_namespaces, doctor_trials.try_ping)
    assert finding.level is Level.WARN
    assert 'ping_mode="link"' in finding.do
    for place in ("a peek at the queue", "a receiver of the subscription"):
        assert place in finding.says


@pytest.mark.usefixtures("ping_as_any_message")
def test_a_ping_that_is_kept_and_expires_is_seen_among_the_dead_letters(
    two_namespaces: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_away(name: str, receiver: Any) -> dict[str, int]:
        return {}

    monkeypatch.setattr(checks, "_seen_now", look_away)
    finding = tried(two_namespaces, doctor_trials.try_ping)
    assert "the dead-letter queue of the queue" in finding.says
    assert "the dead-letter queue of the subscription" in finding.says
    assert "the count of the queue" in finding.says


@pytest.mark.parametrize(
    ("alias", "said"),
    [
        ("x-ms-timetolive", "time_to_live"),
        ("x-ms-scheduledenqueuetimeutc", "scheduled_enqueue_time_utc"),
        ("x-ms-path", "dead-lettered"),
    ],
)
def test_a_message_that_comes_back_as_another_is_noticed(
    two_namespaces: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, alias: str, said: str
) -> None:
    def forgetful(message: Any, path: str, *, now_ms: int) -> Any:
        diverted = to_backlog_message(message, path, now_ms=now_ms)
        del diverted.application_properties[alias]
        return diverted

    monkeypatch.setattr(doctor_trials, "to_backlog_message", forgetful)
    finding = tried(two_namespaces, doctor_trials.try_round_trip)
    assert finding.level is Level.FAIL
    assert said in finding.says


BACKLOG = "contoso/x-servicebus-transfer/0"


def test_what_waits_and_what_is_set_aside_is_seen_and_stays() -> None:
    with EmbeddedBroker("contoso-dr") as broker:
        text = broker.connection_string("contoso-dr")
        with administration(text) as admin:
            admin.create_queue(BACKLOG)
            admin.create_queue("other")
        with client(text) as sdk:
            with sdk.get_queue_sender(BACKLOG) as sender:
                for number in range(3):
                    message = ServiceBusMessage("x", message_id=f"o-{number}")
                    sender.send_messages(to_backlog_message(message, "Orders", now_ms=0))
            with sdk.get_queue_sender("other") as sender:
                sender.send_messages(ServiceBusMessage("x", message_id="not ours"))
            with sdk.get_queue_receiver(BACKLOG, max_wait_time=60) as receiver:
                (first,) = receiver.receive_messages(1)
                receiver.dead_letter_message(first, reason="poison")
        looking = BacklogScan(text)
        for _ in range(2):
            asyncio.run(looking.peek())
            assert sorted(looking.sightings()) == [
                Sighting("Orders", "o-0", "dead_lettered", "contoso"),
                Sighting("Orders", "o-1", "waiting", "contoso"),
                Sighting("Orders", "o-2", "waiting", "contoso"),
            ]
        looking.close()


def test_a_secondary_that_is_gone_is_one_line() -> None:
    with EmbeddedBroker("contoso-dr") as broker:
        text = broker.connection_string("contoso-dr")
    looking = BacklogScan(text)
    with pytest.raises(SyphonError) as error:
        asyncio.run(looking.peek())
    looking.close()
    assert "\n" not in str(error.value)
