"""Finds links that carried no transfer for a time.

Pure: a link's delivery count changes with each transfer, so a sweep now and then is enough, and a
transfer costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from twinbus.amqp.link import Link
from twinbus.broker.refusals import Refusal
from twinbus.servicebus import conditions


class LinkIdle(Refusal):
    """In Azure's words."""

    condition, status = conditions.DETACH_FORCED, 408
    is_tracked = True

    def __init__(self, link: Link, idle_s: float) -> None:
        # The end that sends is the broker's: its client receives.
        role, origin = ("consumer", "Consumer") if link.sends else ("publisher", "Publisher")
        minutes, seconds = divmod(round(idle_s), 60)
        hours, minutes = divmod(minutes, 60)
        super().__init__(
            f"The link {link.name!r} is force detached by the broker due to errors occurred in "
            f"{role}(link{link.handle}). Detach origin: AmqpMessage{origin}.IdleTimerExpired: "
            f"Idle timeout: {hours:02}:{minutes:02}:{seconds:02}."
        )


class IdleLinks:
    def __init__(self, idle_s: float) -> None:
        self._idle_ms = idle_s * 1000
        self._seen: dict[Link, tuple[int, int]] = {}
        """Delivery count of each link, and the time since when it has not changed."""

    def sweep(self, links: Iterable[Link], now_ms: int) -> list[Link]:
        """Return those of the open links that have been idle for the whole time."""
        seen: dict[Link, tuple[int, int]] = {}
        idle = []
        for link in links:
            count, since_ms = self._seen.get(link, (link.delivery_count, now_ms))
            if count != link.delivery_count:
                count, since_ms = link.delivery_count, now_ms
            if now_ms - since_ms >= self._idle_ms:
                idle.append(link)
            else:
                seen[link] = (count, since_ms)
        self._seen = seen
        return idle
