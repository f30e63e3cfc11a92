"""Transfer numbers of one direction of a session, of which the proxy withheld some.

The peers of a session count each other's transfers and deliveries. When the proxy withholds one,
the sender is ahead of the receiver, and every later number is changed on its way:

    sender    0  1  2  3  4        1 was withheld
    receiver  0     1  2  3
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.proxy.core.links import RelayedLink

NUMBERS: Final = 1 << 32
"""AMQP counts in 32 bits, around."""

UNSETTLED_MAX: Final = 100_000
"""Deliveries of a session without a settlement: bounds the memory a peer can make us use."""


def shifted(number: int | None, by: int) -> int | None:
    """A number plus `by`; None stays None."""
    return None if number is None else (number + by) % NUMBERS


@dataclass(slots=True)
class UnsettledDelivery:
    """A delivery that passed and has no final state yet."""

    link: RelayedLink
    sender_id: int
    receiver_id: int
    is_doomed: bool = False
    """The connection is cut when the receiver has taken it."""


@dataclass(slots=True)
class TransferNumbers:
    """One direction of a session, from its sender to its receiver."""

    withheld_frames: int = 0
    withheld_deliveries: int = 0
    passed_frames: int = 0
    by_sender_id: dict[int, UnsettledDelivery] = field(default_factory=dict)
    by_receiver_id: dict[int, UnsettledDelivery] = field(default_factory=dict)

    def passed(self, link: RelayedLink, sender_id: int, *, is_doomed: bool) -> None:
        """Note a delivery that passes and is not settled."""
        receiver_id = self.for_receiver(sender_id)
        delivery = UnsettledDelivery(link, sender_id, receiver_id, is_doomed)
        self.by_sender_id[sender_id] = self.by_receiver_id[receiver_id] = delivery

    def for_receiver(self, sender_id: int) -> int:
        """The id that the receiver gets for the delivery that is passed now."""
        return (sender_id - self.withheld_deliveries) % NUMBERS

    def find(self, first: int, last: int, *, by_receiver: bool) -> Iterator[UnsettledDelivery]:
        """The noted deliveries of a range of ids, in their order."""
        table = self.by_receiver_id if by_receiver else self.by_sender_id
        span = (last - first) % NUMBERS
        if span < len(table):
            wanted = ((first + step) % NUMBERS for step in range(span + 1))
            yield from (table[number] for number in wanted if number in table)
        else:
            # The range is a peer's: what is walked is bounded by what is noted.
            inside = [number for number in table if (number - first) % NUMBERS <= span]
            inside.sort(key=lambda number: (number - first) % NUMBERS)
            yield from (table[number] for number in inside)

    def settled(self, delivery: UnsettledDelivery) -> None:
        self.by_sender_id.pop(delivery.sender_id, None)
        self.by_receiver_id.pop(delivery.receiver_id, None)


def runs_of(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    begin = previous = None
    for number in numbers:
        if previous is not None and number == (previous + 1) % NUMBERS:
            previous = number
            continue
        if begin is not None and previous is not None:
            yield begin, previous
        begin = previous = number
    if begin is not None and previous is not None:
        yield begin, previous
