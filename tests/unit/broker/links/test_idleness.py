"""Which links have been idle for too long."""

from __future__ import annotations

from typing import cast

from twinbus.amqp.link import LinkSession, ReceiverLink, SenderLink
from twinbus.broker.links.idleness import IdleLinks, LinkIdle

SESSION = cast(LinkSession, None)


def test_a_link_is_idle_when_it_carried_nothing_for_the_whole_time() -> None:
    busy, quiet = ReceiverLink(SESSION, "busy", 0), SenderLink(SESSION, "quiet", 1)
    idle, found = IdleLinks(10.0), []
    for now_ms in range(0, 15_000, 1_000):
        busy.delivery_count += 1
        found += [(now_ms, link.name) for link in idle.sweep([busy, quiet], now_ms)]
    # It is open still, in this test, so its time begins again.
    assert found == [(10_000, "quiet")]


def test_the_text_is_azures() -> None:
    refusal = LinkIdle(ReceiverLink(SESSION, "orders", 4), 600.0)
    assert refusal.description == (
        "The link 'orders' is force detached by the broker due to errors occurred in "
        "publisher(link4). Detach origin: AmqpMessagePublisher.IdleTimerExpired: "
        "Idle timeout: 00:10:00."
    )
