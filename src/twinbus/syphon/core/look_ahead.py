"""Whether messages that can be delivered lie behind those of a held destination.

While nothing can be delivered a pump receives nothing (SPEC 6). But when all that it has in hand is
for held destinations, it does not know what comes behind. So it peeks there, which locks nothing;
only if it finds a message for another destination are those before it deferred, up to that one.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LookAheadState"]

PAGES_MAX: Final = 40
"""Peeks of one look; the next one goes on from there. With the pause between two looks, this is
what bounds the requests of a pump that has nothing else to do."""

AGAIN_S: Final = 10.0
AGAIN_MAX_S: Final = 60.0
"""Between two looks; each time that the whole queue was seen in vain for longer."""

TARGET_WAIT_S: Final = 10.0
"""A message that was found and does not come for so long has gone elsewhere."""


NOT_NEEDED_S: Final = 1.0


class LookAheadState:
    """How far the queue was looked through, and what was found."""

    __slots__ = ("_again_s", "_next", "_pages", "_target_until", "is_peeking", "peek_at", "target")

    def __init__(self) -> None:
        self.peek_at = 0.0
        """No look before that time."""
        self.is_peeking = False
        """A page was asked for and has not come."""
        self.target: int | None = None
        """Number of a message that could be delivered, if those before it were not in the way."""
        self._next = 1
        self._pages = 0
        self._target_until = 0.0
        self._again_s = AGAIN_S

    @property
    def due_at(self) -> float | None:
        """When something is to be done without anything having come."""
        if self.target is not None:
            return self._target_until
        return None if self.is_peeking else self.peek_at

    def next_start(self, now: float) -> int | None:
        """Where to peek from; None: not now."""
        if self.is_peeking or self.target is not None or now < self.peek_at:
            return None
        self.is_peeking = True
        return self._next

    def found(self, number: int, now: float) -> None:
        """This one could be delivered."""
        self.is_peeking = False
        self.target = number
        self._target_until = now + TARGET_WAIT_S
        self._again_s = AGAIN_S
        self._pages, self._next = 0, 1

    def found_nothing(self, last: int | None, now: float) -> None:
        """A page ended with that number and held nothing of use; None: there was no page."""
        self.is_peeking = False
        self._pages += 1
        if last is not None and self._pages < PAGES_MAX:
            self._next = last + 1
            return
        self._pages = 0
        self._next = 1 if last is None else last + 1
        self.peek_at = now + self._again_s
        if last is None:
            self._again_s = min(2 * self._again_s, AGAIN_MAX_S)

    def cut_off(self, now: float) -> None:
        """Whoever was asked will not answer."""
        self.is_peeking = False
        self.target = None
        self._pages = 0
        self.peek_at = now + AGAIN_S

    def delivered(self, number: int, now: float) -> None:
        """The queue delivered this one."""
        if self.target is None:
            return
        self._target_until = now + TARGET_WAIT_S
        if number >= self.target:
            self.target = None

    def tick(self, now: float) -> None:
        """Give up a message that does not come; called before `ask`."""
        if self.target is not None and now >= self._target_until:
            self.cut_off(now)

    def not_needed(self, now: float) -> None:
        """Messages arrive, or nothing can be asked: see again a little later."""
        self.peek_at = max(self.peek_at, now + NOT_NEEDED_S)
