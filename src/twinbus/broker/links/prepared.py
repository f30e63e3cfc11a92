"""The messages of one delivery, made ready to be stored: what takes long is done in steps.

    found in the batch -> parsed -> what the rules of the topic make of them,
                                    or the records of a run of them

Nothing changes meanwhile. Then all of them are stored in one step, so a batch is still stored whole
or not at all, whatever other clients do between the steps.

Of a run nothing parsed is kept: thousands of new objects would make the garbage collector stop all
clients for milliseconds.
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
from twinbus.broker.engine.runs import encode_ahead, extend_run, takes_runs, takes_whole
from twinbus.broker.engine.topic import Topic
from twinbus.broker.links.context import new_message_id
from twinbus.broker.links.turns import at_once
from twinbus.broker.messages.incoming import Incoming, parse
from twinbus.broker.messages.plain import PlainRun
from twinbus.broker.refusals import MalformedMessage, MessageTooLarge, Refusal
from twinbus.servicebus.names import BATCH_MESSAGES_MAX

SHORT_MESSAGES: Final = 16
"""Messages of a batch that is no longer prepared in steps."""

FOUND_AT_ONCE: Final = 64
PARSED_AT_ONCE: Final = 8
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
        """The messages of a long batch, if they are alike and their queue takes them together."""
        self.is_short = not self._find(SHORT_MESSAGES)
        if self.is_short:
            self._parse(0, SHORT_MESSAGES)

    @classmethod
    def at_once(cls, event: DeliveryArrived) -> Prepared:
        """A delivery whose messages are found and parsed in one step."""
        prepared = cls(event)
        at_once(prepared._find_rest())
        at_once(prepared._parse_each())
        return prepared

    def batch(self) -> list[Incoming]:
        """The messages; raises the `Refusal` of a delivery that cannot be read."""
        if self._refusal is None and not self._messages:
            # They are a run, and their queue has changed after the last step.
            at_once(self._parse_each())
        if self._refusal is not None:
            raise self._refusal
        return self._messages

    def steps(
        self, target: Entity, now_ms: Callable[[], int], *, as_run: bool = True
    ) -> Generator[None, None, None]:
        """What is left to do before the messages are stored in `target`.

        With `as_run` they are prepared to be stored together, if they are alike.
        """
        yield from self._find_rest()
        if as_run and type(target) is Queue and takes_runs(target, now_ms()):
            run = yield from self._parse_alike()
            if run is not None:
                yield from encode_ahead(target, run, now_ms)
                if takes_whole(target, run, now_ms()):
                    self.run = run
                    return
        yield from self._parse_each()
        if self._refusal is None and isinstance(target, Topic):
            yield from target.evaluate(self._messages, now_ms())

    def _find_rest(self) -> Generator[None, None, None]:
        while not self.is_short and self._find(FOUND_AT_ONCE):
            yield

    def _parse_alike(self) -> Generator[None, None, PlainRun | None]:
        """The messages as a run; None if they are few, differ or cannot be read."""
        run: PlainRun | None = None
        for first in range(0, 0 if self.is_short else len(self._found), PARSED_AT_ONCE):
            messages = self._parsed(first, first + PARSED_AT_ONCE)
            if not messages:
                return None
            run = run or PlainRun(b"", messages[0].ttl_ms)
            if not extend_run(run, messages):
                return None
            yield
        return run

    def _parse_each(self) -> Generator[None, None, None]:
        for first in range(len(self._messages), len(self._found), PARSED_AT_ONCE):
            if self._refusal is not None:
                return
            self._parse(first, first + PARSED_AT_ONCE)
            yield

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
        self._messages += self._parsed(first, last)

    def _parsed(self, first: int, last: int) -> list[Incoming]:
        if self._refusal is None:
            try:
                return [parse(part, new_message_id) for part in self._found[first:last]]
            except Refusal as refusal:
                self._refusal = refusal
        return []
