"""The sizes in the ledger of a relay: what each operation carried."""

from __future__ import annotations

from twinbus.syphon.core.actions import Complete
from twinbus.syphon.relay.bookkeeping import Bookkeeper
from twinbus.transfer.backlog_message import BacklogMessage


class Sizes:
    def __init__(self) -> None:
        self.by_operation: dict[str, object] = {}

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        self.by_operation[operation] = fields["size_bytes"]


def test_a_forward_has_the_size_of_what_was_sent_and_a_settlement_none() -> None:
    ledger = Sizes()
    books = Bookkeeper(ledger, "contoso", "second", "queue")
    message = BacklogMessage(b"token", 751)
    message.path, message.wire = "orders", b"x" * 519
    books.received([message], 0)
    books.forwarded([message], 1.0, 0)
    message.outcome = Complete
    books.settled([message])
    assert ledger.by_operation == {"backlog_receive": 751, "forward": 519, "complete": 0}
    books.not_forwarded(message, "no answer", is_known=False)
    assert ledger.by_operation["forward"] == 519
