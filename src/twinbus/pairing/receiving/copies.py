"""Second copies: which messages a receiver of both sides completes without handing them out.

An attempt on the primary that ended without an answer may have stored the message there, and the
call went on to the twin: then both sides have a copy (docs/twins.md). A copy is a second one only
if all of this is true:

- this receiver completed the copy of the other side, and the service confirmed it;
- the twin's copy has the mark of a diverted message with the time of the unanswered attempt;
- both have the same message id and the same body;
- the primary's copy was enqueued after that attempt began, give or take a minute of clock error;
- this receiver has not handed out this very message before: a redelivery after an abandon or a
  lost lock belongs to the application.

A completed copy of the primary suppresses at most one other, and one of the twin as many as there
were attempts without an answer. Everything else is handed out. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from twinbus.pairing.core.sides import Side
from twinbus.transfer.identity import Head, read_identity

T = TypeVar("T")

CLOCK_ERROR_MS: Final = 60_000
"""How far the clocks of a sender and of the primary may differ."""

COPIES_MAX: Final = 50_000
"""Messages that one receiver remembers; the oldest are forgotten, and their copies handed out."""

Place = tuple[Side, int]
"""A side, and a sequence number there: one message in one namespace."""


class Copy(NamedTuple):
    """One message of one side, as far as copies are compared."""

    side: Side
    number: int
    message_id: str | int | UUID | bytes
    digest: bytes
    """Of the body sections."""
    enqueued_ms: int
    unanswered_since_ms: int | None
    """From the mark of a twin's message; None for a message of the primary."""
    attempts: int = 1
    """Of a twin's message: how many copies of it the primary may have."""

    @property
    def place(self) -> Place:
        return self.side, self.number

    @property
    def key(self) -> tuple[Any, ...]:
        """What the copies of one message have in common; an int is not equal to its text."""
        return type(self.message_id), self.message_id, self.digest


def read_copy(
    side: Side,
    data: bytes,
    label: str,
    stamps: tuple[int, int] | None = None,
    head: Head | None = None,
) -> Copy | None:
    """Return what identifies a message; None: it has no id, or it cannot have a second copy.

    `label` is the primary's: a mark with another one is not about this pair. `stamps` are the
    sequence number and the enqueued time of the message, and `head` its head, if they were read.
    """
    found = read_identity(data, with_mark=side is Side.SECONDARY, stamps=stamps, head=head)
    if found is None:
        return None
    number, enqueued_ms, message_id, digest, mark = found
    if mark is not None and (mark.label != label or mark.unanswered_since_ms is None):
        return None
    if mark is None:
        return Copy(side, number, message_id, digest, enqueued_ms, None)
    since_ms, attempts = mark.unanswered_since_ms, mark.attempts
    return Copy(side, number, message_id, digest, enqueued_ms, since_ms, attempts)


class SecondCopies:
    """What one receiver has completed, and which later messages are copies of that."""

    def __init__(self, copies_max: int = COPIES_MAX) -> None:
        self._max = copies_max
        self._completed: dict[Side, _Completed] = {side: _Completed(copies_max) for side in Side}
        self._handed_out: OrderedDict[Place, None] = OrderedDict()
        """Messages that the application got and this receiver has not completed."""
        self._suppressed: OrderedDict[Place, Copy] = OrderedDict()
        """Second copies whose own completion the service has not confirmed yet."""

    def expects(self, side: Side) -> bool:
        """Whether a message of this side can be a second copy at all."""
        return bool(self._completed[side.other].count or self._suppressed)

    def is_second(self, copy: Copy) -> bool:
        """Whether to complete this message without handing it out; the answer uses up its match."""
        if copy.place in self._handed_out:
            return False
        if self._suppressed.get(copy.place) == copy:
            # The same copy again, because its completion did not reach the service. Compared as a
            # whole: an entity that was deleted and made again counts from 1.
            return True
        if not self._completed[copy.side.other].take_match(copy):
            return False
        _remember(self._suppressed, copy.place, copy, self._max)
        return True

    def handed_out(self, place: Place) -> None:
        """The application got this message."""
        _remember(self._handed_out, place, None, self._max)

    def completed(self, copy: Copy) -> None:
        """The service confirmed that this receiver completed a message that was handed out."""
        place = copy.side, copy.number
        self._handed_out.pop(place, None)
        if self._suppressed:
            self._suppressed.pop(place, None)
        if copy.side is Side.SECONDARY and copy.unanswered_since_ms is None:
            return
        self._completed[copy.side].add(copy)

    def second_completed(self, copy: Copy) -> None:
        """The service confirmed that this receiver completed a second copy."""
        self.gone(copy.place)
        if copy.side is Side.SECONDARY and copy.attempts > 1:
            # The primary may have others beside the one that this is a copy of.
            self._completed[copy.side].add(copy._replace(attempts=copy.attempts - 1))

    def gone(self, place: Place) -> None:
        """The message is in its queue no more, or was deferred, which is received by number."""
        self._handed_out.pop(place, None)
        self._suppressed.pop(place, None)


class _Completed:
    """The completed messages of one side, by what their copies have in common."""

    def __init__(self, copies_max: int) -> None:
        self.count = 0
        self._max = copies_max
        self._by_key: OrderedDict[tuple[Any, ...], list[Copy]] = OrderedDict()

    def add(self, copy: Copy) -> None:
        key = copy.key
        copies = self._by_key.get(key)
        if copies is None:
            self._by_key[key] = [copy]
        else:
            copies.append(copy)
        self.count += 1
        while self.count > self._max:
            oldest = next(iter(self._by_key))
            self._remove(oldest, self._by_key[oldest][0])

    def take_match(self, copy: Copy) -> bool:
        """Remove and report a completed message whose second copy this is."""
        for known in self._by_key.get(copy.key, ()):
            twins, primary = (known, copy) if copy.side is Side.PRIMARY else (copy, known)
            since_ms = twins.unanswered_since_ms
            if since_ms is not None and primary.enqueued_ms >= since_ms - CLOCK_ERROR_MS:
                self._remove(copy.key, known)
                if known.attempts > 1:
                    self.add(known._replace(attempts=known.attempts - 1))
                return True
        return False

    def _remove(self, key: tuple[Any, ...], copy: Copy) -> None:
        copies = self._by_key[key]
        copies.remove(copy)
        self.count -= 1
        if not copies:
            del self._by_key[key]


def _remember(places: OrderedDict[Place, T], place: Place, what: T, places_max: int) -> None:
    places[place] = what
    if len(places) > places_max:
        places.popitem(last=False)
