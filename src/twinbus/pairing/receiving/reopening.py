"""How long a side waits before it opens another link. Pure: takes `now`.

After a link that worked, at once, with some chance so that thousands of receivers do not come in
the same moment. After one that was not opened, or was ended again before it brought anything, the
pause doubles: a namespace that accepts links and ends them at once must not be flooded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PAUSE_FIRST_S: Final = 0.2
PAUSE_MAX_S: Final = 5.0
"""The pause doubles, and half of it is chance. A message that waits in a namespace that is back is
received within this time and one attach. Not longer: the end of an outage must not have a longer
receive gap than its beginning (docs/twins.md)."""

LASTED_S: Final = 15.0
"""A link that was open for this long has worked, whatever it brought."""


class ReopenPauses:
    """The pauses between the links of one side."""

    def __init__(self, chance: Callable[[], float]) -> None:
        """`chance` returns numbers from 0 to 1."""
        self._chance = chance
        self._next_s = PAUSE_FIRST_S
        self._opened_at = 0.0
        self._has_worked = True

    def opened(self, now: float) -> None:
        """A link is open."""
        self._opened_at = now
        self._has_worked = False

    def delivered(self) -> None:
        """The link brought a message."""
        self._has_worked = True

    def restart(self) -> None:
        """Begin with the shortest pause: the namespace answers again."""
        self._next_s = PAUSE_FIRST_S

    def after_end(self, now: float) -> float:
        """Return the pause after an open link that ended."""
        if not self._has_worked and now < self._opened_at + LASTED_S:
            return self.after_failure()
        self.restart()
        return PAUSE_FIRST_S * self._chance()

    def after_failure(self) -> float:
        """Return the pause after a link that was not opened."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, PAUSE_MAX_S)
        return pause_s * (0.5 + 0.5 * self._chance())
