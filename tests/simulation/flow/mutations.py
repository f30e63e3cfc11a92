"""Planted bugs in receivers, twins and the syphon's pumps of twins, which the rules must find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest.mock import patch

from tests.simulation import world
from twinbus.client.outcomes import COMPLETE
from twinbus.pairing.receiving.copies import Copy
from twinbus.pairing.receiving.mark_watch import MarkWatch
from twinbus.pairing.receiving.receiver import PairedReceiver
from twinbus.pairing.receiving.side import ReceivingSide
from twinbus.syphon import twin_relay


def wrong_side() -> AbstractContextManager[Any]:
    """A message of the twin is settled in the primary."""
    real = PairedReceiver._place_of

    def planted(self: PairedReceiver, message: Any, origin: Any) -> tuple[Any, Any]:
        side, delivery = real(self, message, origin)
        first = self._inbox.sides[0]
        return (side, delivery) if side is first else (first, None)

    # What is stuck shows soon, and the world would run on for long.
    return _all_of(
        patch.object(PairedReceiver, "_place_of", planted),
        patch.object(world, "QUIET_LIMIT_S", 60.0),
    )


def syphon_ignores_marks() -> AbstractContextManager[Any]:
    """The syphon empties a queue of that name, whether it is marked or not."""

    async def planted(*_: Any) -> None:
        return None

    return patch.object(twin_relay, "unmarked", planted)


def receiver_ignores_marks() -> AbstractContextManager[Any]:
    """A receiver reads a queue of that name, whether it is marked or not."""

    async def planted(self: MarkWatch) -> None:
        return None

    return patch.object(MarkWatch, "require", planted)


def mark_read_once() -> AbstractContextManager[Any]:
    """A receiver reads the mark of a twin only before the first link."""
    return patch.object(MarkWatch, "link_ended", lambda self: None)


def released_is_completed() -> AbstractContextManager[Any]:
    """What a receiver does not hand out is completed instead of released."""

    def planted(self: ReceivingSide, delivery: Any) -> None:
        if not delivery.settled and delivery.outcome is None:
            delivery.link.settle(delivery, COMPLETE, lambda _: None)

    return patch.object(ReceivingSide, "release", planted)


def suppressed_for_ever() -> AbstractContextManager[Any]:
    """A completed message suppresses each later one with its id, whatever the body."""
    return patch.object(Copy, "key", property(lambda self: (self.message_id,)))


class _All(AbstractContextManager[Any]):
    """Several context managers as one."""

    def __init__(self, parts: tuple[AbstractContextManager[Any], ...]) -> None:
        self._parts = parts

    def __enter__(self) -> None:
        for part in self._parts:
            part.__enter__()

    def __exit__(self, *given: Any) -> None:
        for part in reversed(self._parts):
            part.__exit__(*given)


def _all_of(*parts: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    return _All(parts)


FLOW_BUGS: Final[dict[str, tuple[Callable[[], AbstractContextManager[Any]], str]]] = {
    "settled on the wrong side": (wrong_side, "stuck"),
    "a syphon that ignores marks": (syphon_ignores_marks, "namesake"),
    "a receiver that ignores marks": (receiver_ignores_marks, "namesake"),
    "a mark that is read once": (mark_read_once, "namesake"),
    "completed instead of released": (released_is_completed, "unseen"),
    "a copy suppressed by its id alone": (suppressed_for_ever, "unseen"),
}
"""By name: what puts it in, and the rule that must find it."""
