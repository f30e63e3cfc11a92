"""How a received message is settled: as a state on its link, or as a request by its lock token.

    COMPLETE, RELEASE, abandon(properties), defer(properties), dead_letter(reason, description)

Pure. Receiving links and the syphon share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from twinbus.amqp.composites import read_composite
from twinbus.amqp.performatives import (
    ACCEPTED_BYTES,
    RELEASED_BYTES,
    Accepted,
    Error,
    Modified,
    Rejected,
    TransactionalState,
    encode_state,
)
from twinbus.amqp.types import Symbol
from twinbus.servicebus import conditions

REASON_MAX: Final = 4_096
"""Characters of a reason or description that Service Bus keeps."""

DEFERRED: Final = "defered"  # codespell:ignore - the wire's own spelling

DEAD_LETTER_ARGUMENTS: Final = {
    "DeadLetterReason": "deadletter-reason",
    "DeadLetterErrorDescription": "deadletter-description",
}
"""Entries of a rejection's error, and the arguments of the request that mean the same."""

Changes = Mapping[str, Any]
"""Application properties that a settlement changes, by name."""


@dataclass(frozen=True, slots=True, eq=False)
class SettlingOutcome:
    """What is to become of a message."""

    status: str
    """As `update-disposition` names it."""
    state: bytes
    """The encoded AMQP state, for a disposition."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `update-disposition`."""


COMPLETE: Final = SettlingOutcome("completed", ACCEPTED_BYTES)
"""It is processed, and deleted."""

RELEASE: Final = SettlingOutcome("abandoned", RELEASED_BYTES)
"""It was not processed: others get it at once, and it does not count as a failed delivery. By
request the service knows only abandoning, which counts."""


def abandon(properties: Changes | None = None) -> SettlingOutcome:
    """It failed: it is delivered again at once, and the delivery counts."""
    if not properties:
        return _ABANDON
    return _modified("abandoned", properties, delivery_failed=True)


def defer(properties: Changes | None = None) -> SettlingOutcome:
    """It is put aside, and received only by its sequence number."""
    if not properties:
        return _DEFER
    return _modified(DEFERRED, properties, undeliverable_here=True)


def dead_letter(
    reason: str | None = None,
    description: str | None = None,
    properties: Changes | None = None,
) -> SettlingOutcome:
    """It goes to the dead-letter queue; texts are cut at `REASON_MAX` characters."""
    info: dict[Any, Any] = {Symbol(name): value for name, value in (properties or {}).items()}
    arguments: dict[str, Any] = {}
    if properties:
        arguments["properties-to-modify"] = dict(properties)
    if reason is not None:
        info[Symbol("DeadLetterReason")] = arguments["deadletter-reason"] = reason[:REASON_MAX]
    if description is not None:
        text = description[:REASON_MAX]
        info[Symbol("DeadLetterErrorDescription")] = arguments["deadletter-description"] = text
    state = Rejected(error=Error(condition=Symbol(conditions.DEAD_LETTER), info=info or None))
    return SettlingOutcome("suspended", encode_state(state), arguments)


def transacted(outcome: SettlingOutcome, txn_id: bytes) -> SettlingOutcome:
    """The same outcome, to take effect when a transaction is committed."""
    state, _ = read_composite(outcome.state, 0)
    within = encode_state(TransactionalState(txn_id, state))
    return SettlingOutcome(outcome.status, within, outcome.arguments)


def outcome_of(state: object) -> SettlingOutcome:
    """What a receiver asks for with a state on its own link; no state gives the message back."""
    match state:
        case Accepted():
            return COMPLETE
        case Modified():
            status = DEFERRED if state.undeliverable_here else "abandoned"
            changes = {str(key): value for key, value in (state.message_annotations or {}).items()}
            arguments = {"properties-to-modify": changes} if changes else {}
            return SettlingOutcome(status, encode_state(state), arguments)
        case Rejected():
            return SettlingOutcome("suspended", encode_state(state), _dead_letter_arguments(state))
    return RELEASE


def _dead_letter_arguments(state: Rejected) -> dict[str, Any]:
    info = state.error.info if state.error is not None else None
    changes = {str(key): value for key, value in (info or {}).items()}
    arguments: dict[str, Any] = {}
    for name, argument in DEAD_LETTER_ARGUMENTS.items():
        if (text := changes.pop(name, None)) is not None:
            arguments[argument] = str(text)
    if changes:
        arguments["properties-to-modify"] = changes
    return arguments


def _modified(
    status: str,
    properties: Changes | None = None,
    *,
    delivery_failed: bool = False,
    undeliverable_here: bool = False,
) -> SettlingOutcome:
    changed: dict[Any, Any] = {Symbol(name): value for name, value in (properties or {}).items()}
    state = encode_state(Modified(delivery_failed, undeliverable_here, changed or None))
    arguments = {"properties-to-modify": dict(properties)} if properties else {}
    return SettlingOutcome(status, state, arguments)


_ABANDON: Final = _modified("abandoned", delivery_failed=True)
_DEFER: Final = _modified(DEFERRED, undeliverable_here=True)


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
