"""Finds messages that can be delivered after those of held destinations.

While nothing can be delivered, a pump receives nothing (SPEC 6). If all messages in memory are for
held destinations, the pump does not know what comes after them. So it peeks there, which locks
nothing, and defers the messages in between only if it finds one for another destination.
"""

from __future__ import annotations

from typing import Final

PAGES_MAX: Final = 40
"""Pages peeked in a row; after a pause, the next peeks go on from there. This bounds the requests
of a pump that can deliver nothing."""

AGAIN_S: Final = 10.0
AGAIN_MAX_S: Final = 60.0
"""Pause between two rounds of peeks; doubled each time the whole queue held nothing of use."""

TARGET_WAIT_S: Final = 10.0
"""Time for a message that was found to be delivered; then another receiver has it."""

NOT_NEEDED_S: Final = 1.0
"""Pause after messages arrived without a peek."""


class LookAheadState:
    """How far one queue was peeked, and the message that was found."""

    def __init__(self) -> None:
        self.peek_at = 0.0
        """No peek before that time."""
        self.is_peeking = False
        """A page is being peeked."""
        self.target: int | None = None
        """Sequence number of a message that can be delivered once those before it are deferred."""
        self._next = 1
        self._pages = 0
        self._target_until = 0.0
        self._again_s = AGAIN_S

    @property
    def due_at(self) -> float | None:
        """When `tick` or the next peek is due; None: a page is being peeked."""
        if self.target is not None:
            return self._target_until
        return None if self.is_peeking else self.peek_at

    def next_start(self, now: float) -> int | None:
        """Return the sequence number to peek from, and expect the page; None: not now."""
        if self.is_peeking or self.target is not None or now < self.peek_at:
            return None
        self.is_peeking = True
        return self._next

    def found(self, number: int, now: float) -> None:
        """Wait for this message: it can be delivered."""
        self.is_peeking = False
        self.target = number
        self._target_until = now + TARGET_WAIT_S
        self._again_s = AGAIN_S
        self._pages, self._next = 0, 1

    def found_nothing(self, last: int | None, now: float) -> None:
        """Go on after a page that held nothing of use and ended with `last`; None: it was empty."""
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
        """Start over after a pause: the peek failed, or the target did not come."""
        self.is_peeking = False
        self.target = None
        self._pages = 0
        self.peek_at = now + AGAIN_S

    def delivered(self, number: int, now: float) -> None:
        """Note a delivery; at the target, the look-ahead is over."""
        if self.target is None:
            return
        self._target_until = now + TARGET_WAIT_S
        if number >= self.target:
            self.target = None

    def tick(self, now: float) -> None:
        """Give up a target that was not delivered in time."""
        if self.target is not None and now >= self._target_until:
            self.cut_off(now)

    def not_needed(self, now: float) -> None:
        """Put off the next peek: messages arrive, or the queue cannot be asked."""
        self.peek_at = max(self.peek_at, now + NOT_NEEDED_S)
