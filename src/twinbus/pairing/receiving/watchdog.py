"""When a receiving link is checked because it brings nothing.

A link can fall silent without an error: the namespace lost it and did not say so, a firewall
dropped the connection. A quiet queue looks the same. A peek would tell the two apart only in part,
for it shows locked messages like available ones, and it is billed. So nothing is peeked at: a link
that had open credit for 30 to 40 s and brought nothing is checked with frames that are not billed.

    silent, no session, nothing unsettled -> REPLACE: drain it, detach it, attach another link
    silent, a session or unsettled        -> DRAIN: the namespace must send what it has, or say
                                             that it has nothing; then the credit is given again
    a drain that is not answered in 5 s   -> REPLACE, and if the whole connection was silent,
                                             connect again; never for a session with unsettled
                                             messages, whose locks would be lost with its link

Attaching and draining are not billed: a healthy receiver costs 0 operations while it waits. A
message that waits is delivered at the latest 40 s + 5 s until the side looks + 5 s for the drain
+ one attach after its link fell silent.
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

    def heard(self, now: float) -> None:
        """The link brought a delivery, or was opened or checked."""
        self._silent_s = 0.0
        if self._credit_since is not None:
            self._credit_since = now

    def check(self, now: float, *, unsettled: int, is_session: bool) -> LinkCheck:
        """What to do at `check_at`, or at any other time."""
        due = self.check_at
        if due is None or now < due:
            return LinkCheck.NOTHING
        return LinkCheck.DRAIN if is_session or unsettled else LinkCheck.REPLACE

    def not_answered(self, *, unsettled: int, is_session: bool) -> LinkCheck:
        """What to do when a drain was not answered."""
        return LinkCheck.NOTHING if is_session and unsettled else LinkCheck.REPLACE
