"""One settlement of a received message: what is asked for, and who waits for the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from uuid import UUID

from twinbus.client.consumer_records import NO_NAMES
from twinbus.client.outcomes import SettlingOutcome
from twinbus.client.receiving import Delivery
from twinbus.transfer.identity import MessageNames


class SettlementAnswer(Protocol):
    """A future of the event loop, or a promise that another thread waits for."""

    def done(self) -> bool:
        """Whether the caller has an answer, or has given up."""

    def set_result(self, result: None, /) -> None: ...

    def set_exception(self, exception: Any, /) -> None: ...

    def add_done_callback(self, fn: Callable[[Any], Any], /) -> None: ...


class MessageSettlement:
    """Settles one message; ends once."""

    __slots__ = (
        "answer", "confirmed", "delivery", "ends_at", "names", "outcome", "token", "translated",
    )  # fmt: skip

    def __init__(
        self,
        answer: SettlementAnswer,
        outcome: SettlingOutcome,
        delivery: Delivery | None,
        token: UUID | None = None,
        names: MessageNames = NO_NAMES,
        confirmed: Callable[[], None] = lambda: None,
        translated: Callable[[Exception], Exception] = lambda error: error,
    ) -> None:
        """`token` is needed only without a delivery, and `names` are for its line in the ledger.

        `confirmed` is called when the service has confirmed it, also if the caller gave up waiting.
        `translated` returns what the caller gets for an error.
        """
        self.answer = answer
        self.outcome = outcome
        self.delivery = delivery
        self.token = token
        self.names = names
        self.confirmed = confirmed
        self.translated = translated
        self.ends_at = 0.0

    def end(self, error: Exception | None) -> None:
        """Report the result; None: the service has confirmed it."""
        try:
            if error is None:
                self.confirmed()
        finally:
            # Also if `confirmed` fails: the caller must not wait for ever.
            if self.answer.done():
                pass
            elif error is None:
                self.answer.set_result(None)
            else:
                self.answer.set_exception(self.translated(error))
