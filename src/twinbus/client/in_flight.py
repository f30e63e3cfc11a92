"""Transfers to a namespace that wait for credit or for its answer: one by one, and as runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from twinbus.amqp.events import Disposed
from twinbus.amqp.link import SERIAL_MASK
from twinbus.amqp.performatives import Accepted, TransactionalState
from twinbus.client.coordinator import refusal_of

Done = Callable[[Exception | None], None]
"""Called once for each transfer: None when a namespace has accepted it."""


class AnsweredLink(Protocol):
    """The link that carries a transfer."""

    answered_at: float


class RunOwner(ABC):
    """Who sent a run of transfers; their places in it count from 0."""

    @abstractmethod
    def accepted(self, first: int, last: int) -> None:
        """The namespace has accepted these."""

    @abstractmethod
    def failed(self, place: int, error: Exception) -> None:
        """The namespace refused this one, or did not answer it."""


@dataclass(slots=True)
class Wire:
    """One delivery as it is written; like `Sent` no tuple, which takes longer to make."""

    data: bytes
    message_format: int
    state: TransactionalState | None = None
    """The transaction that it is part of."""


class WaitingSend(NamedTuple):
    """One transfer without credit."""

    wire: Wire
    done: Done
    ends_at: float

    def end(self, error: Callable[[], Exception]) -> None:
        self.done(error())


class WaitingRun:
    """Transfers of one owner, of format 0, of which the last ones have no credit."""

    __slots__ = ("ends_at", "owner", "payloads", "place")

    def __init__(self, owner: RunOwner, payloads: list[bytes], ends_at: float) -> None:
        self.owner = owner
        self.payloads = payloads
        self.ends_at = ends_at
        self.place = 0
        """Of the first that has no credit."""

    def end(self, error: Callable[[], Exception]) -> None:
        """End those without credit, each with an error of its own."""
        for place in range(self.place, len(self.payloads)):
            self.owner.failed(place, error())


@dataclass(slots=True, eq=False)
class Sent:
    """One transfer that was written."""

    link: AnsweredLink
    done: Done
    ends_at: float

    def end(self, number: int, error: Exception) -> None:
        """End the transfer with an error; `number` is its delivery id."""
        self.done(error)


class SentRun:
    """Transfers with consecutive delivery ids, each of which may be answered by itself."""

    __slots__ = ("_first_id", "_first_place", "ends_at", "link", "owner")

    def __init__(self, link: AnsweredLink, run: WaitingRun, first_id: int) -> None:
        """What is written now of that run."""
        self.link = link
        self.owner = run.owner
        self.ends_at = run.ends_at
        self._first_id = first_id
        self._first_place = run.place

    def accepted(self, first: int, last: int) -> None:
        """The namespace has accepted these, by delivery ids."""
        start = self._place(first)
        self.owner.accepted(start, start + last - first)

    def end(self, number: int, error: Exception) -> None:
        """End one of the transfers with an error, by its delivery id."""
        self.owner.failed(self._place(number), error)

    def _place(self, number: int) -> int:
        return self._first_place + ((number - self._first_id) & SERIAL_MASK)


InFlight = dict[int, Sent | SentRun]
"""What one session has in flight, by delivery id."""


def answer(sent: InFlight, event: Disposed, heard_at: float) -> None:
    """Hand the namespace's answer to those who sent; transfers of one run together."""
    if event.first == event.last:
        # Nearly all answers to messages that are sent one by one.
        number = event.first
        if not event.session.take_one(number) or (alone := sent.pop(number, None)) is None:
            return  # It was not answered in time, and its call goes on without it.
        alone.link.answered_at = heard_at
        if type(event.state) is not Accepted and (refusal := refusal_of(event.state)) is not None:
            alone.end(number, refusal)
        elif isinstance(alone, SentRun):
            alone.accepted(number, number)
        else:
            alone.done(None)
        return
    run: SentRun | None = None
    first = last = -1
    is_accepted = type(event.state) is Accepted
    pop = sent.pop
    for number, _, _ in event.session.take_unsettled(event.first, event.last):
        one = pop(number, None)
        if one is None:
            continue  # It was not answered in time, and its call goes on without it.
        if one is run and number == last + 1:
            last = number
            continue
        if run is not None:
            run.accepted(first, last)
            run = None
        one.link.answered_at = heard_at
        # Each call has an error of its own: it gets the ids of its messages.
        if not is_accepted and (refusal := refusal_of(event.state)) is not None:
            one.end(number, refusal)
        elif isinstance(one, SentRun):
            run, first, last = one, number, number
        else:
            one.done(None)
    if run is not None:
        run.accepted(first, last)
