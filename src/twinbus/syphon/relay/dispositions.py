"""What was decided about a message, as AMQP tells it to the queue: by disposition or by request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twinbus.amqp.performatives import (
    ACCEPTED_BYTES,
    RELEASED_BYTES,
    Error,
    Modified,
    Rejected,
    encode_state,
)
from twinbus.amqp.types import Symbol
from twinbus.servicebus import conditions
from twinbus.syphon.core.actions import Complete, DeadLetter, Defer, Release

REASON_MAX: Final = 4_096
"""Characters of a reason or description that Service Bus keeps."""


def disposition_of(outcome: type[Complete] | DeadLetter | Defer | Release) -> bytes:
    """Return the encoded AMQP state that settles a delivery with this outcome (AMQP.md 2.6)."""
    match outcome:
        case DeadLetter():
            info = {
                Symbol("DeadLetterReason"): outcome.reason[:REASON_MAX],
                Symbol("DeadLetterErrorDescription"): outcome.description[:REASON_MAX],
            }
            error = Error(condition=Symbol(conditions.DEAD_LETTER), info=info)
            return encode_state(Rejected(error=error))
        case Defer():
            return encode_state(Modified(delivery_failed=False, undeliverable_here=True))
        case Release():
            return RELEASED_BYTES
        case _:
            return ACCEPTED_BYTES


def disposition_status(outcome: DeadLetter | Defer | Release) -> tuple[str, ...]:
    """Return an outcome as a request tells it: the status, then a dead letter's reason and text."""
    match outcome:
        case DeadLetter():
            return "suspended", outcome.reason, outcome.description
        case Defer():
            return ("defered",)
        case _:
            return ("abandoned",)


def ranges(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Sort the numbers; yield the first and last of each run without a gap."""
    numbers.sort()
    first = last = numbers[0]
    for number in numbers:
        if number > last + 1:
            yield first, last
            first = number
        last = number
    yield first, last
