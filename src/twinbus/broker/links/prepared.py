"""The messages of one delivery, made ready to be stored: what takes long is done in steps.

    found in the batch -> parsed -> what the rules of the topic make of them,
                                    or the records of a run of them

Nothing changes meanwhile. Then all of them are stored in one step, so a batch is still stored whole
or not at all, whatever other clients do between the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import islice
from typing import Final

from twinbus.amqp.events import DeliveryArrived
from twinbus.amqp.message import BATCH_FORMAT, batch_parts
from twinbus.amqp.types import DecodeError
from twinbus.broker.engine.directory import Entity
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.runs import encode_ahead, extend_run
from twinbus.broker.engine.topic import Topic
from twinbus.broker.links.context import new_message_id
from twinbus.broker.links.turns import at_once
from twinbus.broker.messages.incoming import Incoming, parse
from twinbus.broker.messages.plain import PlainRun
from twinbus.broker.refusals import MalformedMessage, MessageTooLarge, Refusal
from twinbus.servicebus.names import BATCH_MESSAGES_MAX

SHORT_MESSAGES: Final = 16
"""Messages of a batch that is no longer prepared in steps."""

FOUND_AT_ONCE: Final = 128
PARSED_AT_ONCE: Final = 16
"""Messages of one step: a quarter of a slice (`turns.SLICE_S`)."""


def is_batch(event: DeliveryArrived) -> bool:
    return event.message_format == BATCH_FORMAT


class Prepared:
    """One delivery; `batch` gives its messages when `is_short`, or when `steps` are done."""

    __slots__ = ("_found", "_messages", "_parts", "_refusal", "is_short", "run")

    def __init__(self, event: DeliveryArrived) -> None:
        self._parts = batch_parts(event.payload) if is_batch(event) else iter((event.payload,))
        self._found: list[bytes] = []
        self._messages: list[Incoming] = []
        self._refusal: Refusal | None = None
        self.run: PlainRun | None = None
        """The messages of a long batch, if they are alike."""
        self.is_short = not self._find(SHORT_MESSAGES)
        if self.is_short:
            self._parse(0, SHORT_MESSAGES)

    @classmethod
    def at_once(cls, event: DeliveryArrived) -> Prepared:
        """A delivery whose messages are found and parsed in one step."""
        prepared = cls(event)
        at_once(prepared._parse_rest())
        return prepared

    def batch(self) -> list[Incoming]:
        """The messages; raises the `Refusal` of a delivery that cannot be read."""
        if self._refusal is not None:
            raise self._refusal
        return self._messages

    def steps(self, target: Entity, now_ms: Callable[[], int]) -> Generator[None, None, None]:
        """What is left to do before the messages are stored in `target`."""
        yield from self._parse_rest()
        if self._refusal is not None:
            return
        if isinstance(target, Topic):
            yield from target.evaluate(self._messages, now_ms())
        elif self.run is not None and type(target) is Queue:
            yield from encode_ahead(target, self.run, now_ms)

    def _parse_rest(self) -> Generator[None, None, None]:
        while not self.is_short and self._find(FOUND_AT_ONCE):
            yield
        is_alike = not self.is_short
        for first in range(len(self._messages), len(self._found), PARSED_AT_ONCE):
            if self._refusal is not None:
                return
            self._parse(first, first + PARSED_AT_ONCE)
            if is_alike and self._refusal is None:
                self.run = self.run or PlainRun(b"", self._messages[0].ttl_ms)
                is_alike = extend_run(self.run, self._messages[first:])
            yield
        self._found.clear()
        if not is_alike:
            self.run = None

    def _find(self, count: int) -> bool:
        """Find up to so many more messages; whether there may be others."""
        before = len(self._found)
        try:
            self._found += islice(self._parts, count)
        except DecodeError as error:
            self._refusal = MalformedMessage(f"the batch cannot be read: {error}")
        if not self._found:
            self._refusal = self._refusal or MalformedMessage("the batch holds no message")
        if len(self._found) > BATCH_MESSAGES_MAX:
            self._refusal = MessageTooLarge(
                f"The batch holds more than {BATCH_MESSAGES_MAX} messages, which is the limit; send"
                " fewer in one batch."
            )
        return self._refusal is None and len(self._found) - before == count

    def _parse(self, first: int, last: int) -> None:
        if self._refusal is not None:
            return
        try:
            self._messages += [parse(part, new_message_id) for part in self._found[first:last]]
        except Refusal as refusal:
            self._refusal = refusal
