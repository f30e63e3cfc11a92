"""When a receiving link is checked because it brings nothing.

A link can fall silent without an error: the namespace lost it and did not say so, a firewall
dropped the connection. A quiet queue looks the same. A peek would tell the two apart only in part,
for it shows locked messages like available ones, and it is billed. So nothing is peeked at: a link
that had open credit for 30 to 40 s and brought nothing is checked with frames that are not billed.

    silent for 30 to 40 s      -> DRAIN: the namespace sends what it has, or says that it has
                                  nothing; an answer shows that connection and link are alive, and
                                  the link is trusted until the next check
    no answer within 5 s       -> REPLACE, and if the whole connection was silent, connect again;
                                  never for a session with unsettled messages, whose locks would
                                  be lost with its link
    answers, and still silent  -> REPLACE all the same, at the first check, then at the 2nd, 4th and
                                  8th check of the link that follows, at last at each 14th (7 to
                                  9 minutes); never for a session, nor while messages are unsettled

The last rule is for a namespace that answers for a link which it has lost inside. One new link that
brings nothing proves as little as the old one, so others follow, each after a longer time. After a
delivery, or a link that ended, the time is the shortest again.

Attaching and draining are not billed: a healthy receiver costs 0 operations while it waits. A
message that waits is delivered at the latest 40 s + 5 s until the side looks + 5 s for the drain
+ one attach after its link fell silent; if the namespace answers drains for a lost link, after the
longer time that has been reached.
Both sides of a receiver, and the receivers of a program, are checked at different times (jitter).

The time is counted while credit is out, over several links and receive calls, so that a program
that calls for a second at a time is covered too. Pure: takes `now`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

SILENT_LEAST_S: Final = 30.0
SPREAD_S: Final = 10.0
"""A link is checked after SILENT_LEAST_S and up to SPREAD_S more."""

DRAIN_ANSWER_S: Final = 5.0
"""A drain without an answer in this time shows that the link is dead."""

CHECKS_MAX: Final = 14
"""Checks after which a silent link is replaced though it answers, at most: within 10 minutes, when
the service would detach a link without transfers by itself."""

UNSETTLED_S: Final = 300.0
"""The longest lock of Service Bus. A message that was handed out earlier and never settled does not
keep its link from being replaced; one whose lock is renewed is settled by its lock token then."""


class LinkCheck(Enum):
    """What to do with a link now."""

    NOTHING = auto()
    DRAIN = auto()
    REPLACE = auto()


class Watchdog:
    """Watches the links of one side of a receiver, one after another."""

    def __init__(self, jitter: float) -> None:
        """`jitter` is a number from 0 to 1, drawn once for each link's owner."""
        self._limit_s = SILENT_LEAST_S + SPREAD_S * jitter
        self._silent_s = 0.0
        """Time with open credit since the last delivery or check."""
        self._answers = 0
        """Checks that the present link has answered since it was opened or brought a message."""
        self._replace_at = 1
        """The check at which a link is replaced though it answers."""
        self._credit_since: float | None = None

    @property
    def check_at(self) -> float | None:
        """When to call `check` next; None: no credit is out."""
        if self._credit_since is None:
            return None
        return self._credit_since + self._limit_s - self._silent_s

    def credit_changed(self, now: float, *, is_out: bool) -> None:
        """Credit was granted, or used up, drained or lost with the link."""
        if is_out == (self._credit_since is not None):
            return
        if self._credit_since is not None:
            self._silent_s += max(0.0, now - self._credit_since)
        self._credit_since = now if is_out else None

    def opened(self, now: float) -> None:
        """Another link was opened."""
        self._begin(now)
        self._answers = 0

    def delivered(self, now: float) -> None:
        """The link brought a message: it works."""
        self.opened(now)
        self._replace_at = 1

    def ended(self) -> None:
        """The link ended or did not answer: the next one is trusted for the shortest time."""
        self._replace_at = 1

    def replaced(self) -> None:
        """A link was closed though it answered: the next one is kept for longer."""
        self._replace_at = min(2 * self._replace_at, CHECKS_MAX)

    def checked(self, now: float) -> None:
        """The link answered a check, or is kept though it did not."""
        self._begin(now)
        self._answers += 1

    def check(self, now: float, *, unsettled: int, is_session: bool) -> LinkCheck:
        """What to do at `check_at`, or at any other time."""
        due = self.check_at
        if due is None or now < due:
            return LinkCheck.NOTHING
        is_kept = is_session or unsettled or self._answers + 1 < self._replace_at
        return LinkCheck.DRAIN if is_kept else LinkCheck.REPLACE

    def not_answered(self, *, unsettled: int, is_session: bool) -> LinkCheck:
        """What to do when a drain was not answered."""
        return LinkCheck.NOTHING if is_session and unsettled else LinkCheck.REPLACE

    def _begin(self, now: float) -> None:
        """Count the silent time from now on."""
        self._silent_s = 0.0
        if self._credit_since is not None:
            self._credit_since = now
