"""`options.classify`: the user's own judgement, and what a mistake in it costs."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from twinbus.options import Verdict, classify, judge
from twinbus.testing.fake_pair import FakePair
from twinbus.testing.fake_sdk import refuses

pytestmark = pytest.mark.virtual_time


def busy_counts(error: BaseException) -> Verdict:
    return Verdict.COUNTS if isinstance(error, ServiceBusServerBusyError) else classify(error)


def nothing_counts(_: BaseException) -> Verdict:
    return Verdict.IGNORED


def raises(error: BaseException) -> Verdict:
    raise KeyError(type(error).__name__)


def says_yes(_: BaseException) -> Any:
    return True


def says_nothing(_: BaseException) -> Any:
    return None


def test_the_built_in_table_judges_when_there_is_no_other() -> None:
    assert judge(ConnectionResetError(), None) == (Verdict.COUNTS, "")
    assert judge(ValueError(), None) == (Verdict.IGNORED, "")


def test_ones_own_judgement_replaces_it() -> None:
    assert judge(ServiceBusServerBusyError(), busy_counts) == (Verdict.COUNTS, "")
    assert judge(ValueError(), busy_counts) == (Verdict.IGNORED, "")
    assert judge(ConnectionResetError(), nothing_counts) == (Verdict.IGNORED, "")


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (raises, "raised KeyError: 'ConnectionResetError' on ConnectionResetError"),
        (says_yes, "returned True for ConnectionResetError"),
        (says_nothing, "returned None for ConnectionResetError"),
    ],
)
def test_a_mistake_in_it_is_told_in_one_line_and_the_table_judges(own: Any, words: str) -> None:
    verdict, complaint = judge(ConnectionResetError(), own)
    assert verdict is Verdict.COUNTS
    assert complaint.startswith(f"options.classify {words}")
    assert "\n" not in complaint
    assert judge(ValueError(), own)[0] is Verdict.IGNORED


def test_what_ends_the_program_is_not_taken_for_a_mistake() -> None:
    def interrupted(_: BaseException) -> Verdict:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(ConnectionResetError(), interrupted)


@pytest.mark.parametrize("own", [raises, says_yes, says_nothing])
async def test_a_mistake_in_it_costs_neither_the_failover_nor_the_sends_own_error(
    own: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world = FakePair(classify=own, retry_total=0)
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(ConnectionRefusedError, match="refused") as caught:
        await sender.send_messages(ServiceBusMessage("x", message_id="hasty"), timeout=1)
    assert caught.value.message_ids == ("hasty",)  # type: ignore[attr-defined]
    await sender.send_messages(ServiceBusMessage("x"), timeout=60)
    assert world.state() == "failed over"
    assert len(world.secondary.took) == 1
    await world.client.close()
    assert [r.message for r in caplog.records if r.levelname == "ERROR"] == [
        judge(ConnectionRefusedError("refused"), own)[1]
    ]


async def test_ones_own_judgement_decides_over_the_failover() -> None:
    world = FakePair(classify=nothing_counts, retry_total=0)
    world.primary.behaviour = refuses
    sender = world.client.get_queue_sender("orders")
    with pytest.raises(ConnectionRefusedError):
        await sender.send_messages(ServiceBusMessage("x"), timeout=60)
    assert world.state() == "healthy"
    await world.client.close()
