"""Credits of a namespace per second, as the Standard tier of Azure Service Bus counts them.

Each second begins with the same number of credits. A message sent, received or peeked costs 1, each
evaluation of a topic's filter 1 more, an administration request 10. With no credit left, requests
are answered server-busy until the next second. An operation that begins with a credit left is
carried out whole; what it overdraws is missing in the next second.
"""

from __future__ import annotations

from twinbus.broker.refusals import ServerBusy

ADMINISTRATION_COST = 10
PERIOD_MS = 1000

THROTTLED = (
    "The request was terminated because the entity is being throttled. Error code: 50009. Please"
    " wait 2 seconds and try again."
)


class CreditAccount:
    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = per_s
        self._period = 0
        self.throttled = 0
        """Requests that were answered server-busy."""

    def left(self, now_ms: int) -> float:
        """Credits left in this second; less than 1: requests are refused."""
        period = now_ms // PERIOD_MS
        if period != self._period:
            # A clock that was set back begins a new second too.
            passed = max(1, period - self._period)
            self._left = min(self._per_s, self._left + passed * self._per_s)
            self._period = period
        return self._left

    def spend(self, cost: int, now_ms: int) -> None:
        """Subtract the cost of what was done."""
        self._left = self.left(now_ms) - cost

    def require(self, cost: int, now_ms: int) -> None:
        """Subtract the cost of a request; `ServerBusy` if no credit is left."""
        if self.left(now_ms) < 1:
            self.throttled += 1
            raise ServerBusy(THROTTLED)
        self._left -= cost

    @staticmethod
    def wait_ms(now_ms: int) -> int:
        """Time until the next second begins."""
        return PERIOD_MS - now_ms % PERIOD_MS
