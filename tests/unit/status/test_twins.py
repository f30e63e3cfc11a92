"""What a status says of messages in twins, and when that needs attention."""

from __future__ import annotations

import pytest

from tests.unit.status.statuses import NOW, entity, status, syphon
from twinbus.status.document import (
    PairStatus,
    SyphonQueueStatus,
    SyphonStatus,
    TwinContents,
)
from twinbus.status.judgement import judgement_of
from twinbus.status.reading import read_status
from twinbus.status.twins import LEFT_IN_TWIN_S, twins_text

AUDIT = "events/Subscriptions/audit"
LATE = TwinContents(topic="events", waiting=9, waits_s=1_000.0, consumers_only="a subscription")
QUEUE = TwinContents(waiting=3, waits_s=10.0)


def concerns(found: PairStatus | SyphonStatus) -> list[str]:
    return [one.text for one in judgement_of(found, NOW).concerns if one.kind == "twins"]


def test_the_line_names_the_number_and_what_only_consumers_empty() -> None:
    assert twins_text({}) == twins_text({"orders": TwinContents(waiting=0)}) == ""
    assert twins_text({"orders": TwinContents(waiting=1)}) == "1 message waits in twins"
    assert twins_text({"orders": QUEUE, AUDIT: LATE}) == (
        f"12 messages wait in twins; only consumers empty {AUDIT} (9, a subscription)"
    )


@pytest.mark.parametrize(
    ("known", "needs_attention"),
    [
        ((), True),
        ((entity("EVENTS"),), True),
        ((entity("events", since_s=LEFT_IN_TWIN_S),), True),
        ((entity("events", since_s=LEFT_IN_TWIN_S - 1),), False),
        ((entity("events", "failed over", since_s=5_000.0),), False),
    ],
)
def test_a_pair_needs_attention_when_the_entity_has_long_been_healthy(
    known: tuple[object, ...], needs_attention: bool
) -> None:
    found = concerns(status(*known, twins={AUDIT: LATE, "orders": QUEUE}))  # type: ignore[arg-type]
    assert bool(found) is needs_attention
    assert all(AUDIT in text and "orders" not in text for text in found)


def test_a_syphon_needs_attention_unless_it_waits_for_the_primary() -> None:
    def found(**changes: object) -> list[str]:
        queues = {"q": SyphonQueueStatus(**changes)}  # type: ignore[arg-type]
        return concerns(SyphonStatus(queues=queues, twins={AUDIT: LATE}))

    assert found()
    assert not found(problems={"primary": "lost"})
    assert not found(held={"events": "full"})


def test_a_status_with_twins_is_read_back_and_one_without_has_none() -> None:
    before = status(twins={AUDIT: LATE}, syphon={})
    after = read_status(before.as_dict())
    assert after == before
    assert after.own_syphon is not None
    assert after.own_syphon.twins == {AUDIT: LATE}
    document = syphon().as_dict()
    del document["twins"]
    assert read_status(document).twins == {}
