"""The doctor's trials notice what they are there to notice: planted faults, on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from tests.contract.pairs import embedded
from tests.official_sdk import administration
from twinbus import EmbeddedBroker, Namespace
from twinbus.console.doctor import commands as doctor_trials
from twinbus.console.doctor.rights import ExaminedPair, Finding, Level
from twinbus.transfer.sdk import to_backlog_message
from twinbus.verify import checks

pytestmark = pytest.mark.contract


broker = embedded(queues=(), scope="module")


def tried(broker: EmbeddedBroker, trial: Callable[..., Any]) -> Finding:
    """The one finding of a trial, after which no scratch entity is left."""
    sides = [broker.connection_string(name) for name in ("contoso", "contoso-dr")]

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


def test_a_ping_that_is_delivered_is_seen_everywhere(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def as_any_message(sender: Any) -> None:
        await sender.send_messages(ServiceBusMessage(b"", time_to_live=timedelta(seconds=1)))

    monkeypatch.setattr(checks, "send_ping", as_any_message)
    finding = tried(broker, doctor_trials.try_ping)
    assert finding.level is Level.WARN
    assert 'ping_mode="link"' in finding.do
    for place in ("a peek at the queue", "a receiver of the subscription"):
        assert place in finding.says


def test_a_ping_that_is_kept_and_expires_is_seen_among_the_dead_letters(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_away(name: str, receiver: Any) -> dict[str, int]:
        return {}

    async def as_any_message(sender: Any) -> None:
        await sender.send_messages(ServiceBusMessage(b"", time_to_live=timedelta(seconds=1)))

    monkeypatch.setattr(checks, "send_ping", as_any_message)
    monkeypatch.setattr(checks, "_seen_now", look_away)
    finding = tried(broker, doctor_trials.try_ping)
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
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, alias: str, said: str
) -> None:
    def forgetful(message: Any, path: str, *, now_ms: int) -> Any:
        diverted = to_backlog_message(message, path, now_ms=now_ms)
        del diverted.application_properties[alias]
        return diverted

    monkeypatch.setattr(doctor_trials, "to_backlog_message", forgetful)
    finding = tried(broker, doctor_trials.try_round_trip)
    assert finding.level is Level.FAIL
    assert said in finding.says
