"""Requests to `$management` nodes of the primary that wait for their answers: how long, how many.

A primary that hangs answers nothing and keeps its connection: without a time limit a client would
wait for as long as its own patience lasts, and not learn why. Without a limit of their number, what
a client asks meanwhile would fill the memory. A client that has reached it gets its next request
refused with `amqp:resource-limit-exceeded` (docs/security.md).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from twinbus.amqp.budgets import Budget
from twinbus.amqp.message import decode_properties, split
from twinbus.amqp.types import DecodeError
from twinbus.broker.refusals import QuotaExceeded

UNANSWERED_MAX: Final = 1_000
"""Requests of one client that the primary has not answered; an SDK waits for some tens at most."""

GIVEN_UP_MAX: Final = 1_000
"""Requests of one client whose late answers are dropped; the answers of older ones are handed on,
and the client knows no request that they belong to."""

REQUEST_BYTES: Final = 1_000
"""What a request that waits takes beside its own bytes."""

ANSWERING_BYTES: Final = 4_000
"""The same of one that the gateway is answering: it has a task."""

Key = tuple[Hashable, Hashable]
"""A node, and the id of a request."""


class Holding:
    """What one client holds of a budget for one purpose; more than there is room for is refused."""

    __slots__ = ("_budget", "amount")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.amount = 0

    def take(self, amount: int) -> None:
        """Hold more; `QuotaExceeded` if a budget has no room for it."""
        full = self._budget.lacking(amount)
        if full is not None:
            raise QuotaExceeded(
                f"{full.owner} has more than {full.limit} {full.unit}, which is the limit;"
                " wait until some of it has ended."
            )
        self._budget.take(amount)
        self.amount += amount

    def give_back(self, amount: int) -> None:
        self.amount -= amount
        self._budget.give_back(amount)

    def close(self) -> None:
        self.give_back(self.amount)


class _Unanswered(NamedTuple):
    ends_at: float
    give_up: Callable[[], None]
    size_bytes: int


class UnansweredRequests:
    """The requests of one client that the primary has not answered."""

    def __init__(self, answer_s: float, held_bytes: Budget | None = None) -> None:
        """`held_bytes` is the budget of the client's connection."""
        self.answer_s = answer_s
        self._held = Holding(held_bytes or Budget("this connection", "bytes"))
        self._waiting: OrderedDict[Key, _Unanswered] = OrderedDict()
        """The first is given up first: all have the same time."""
        self._given_up: OrderedDict[int, None] = OrderedDict()
        """Hashes of keys: an id may be as long as a request."""
        self._timer: asyncio.TimerHandle | None = None

    def require_room(self) -> None:
        """Raise `QuotaExceeded` if too many requests have no answer."""
        if len(self._waiting) >= UNANSWERED_MAX:
            raise QuotaExceeded(
                f"{UNANSWERED_MAX} requests of this connection have no answer from the primary,"
                " which is the limit; wait for answers before you ask for more."
            )

    def add(
        self, node: Hashable, request_id: Hashable, give_up: Callable[[], None], size_bytes: int = 0
    ) -> None:
        """Call `give_up` if the request is not answered in time; `QuotaExceeded`: it is one more.

        `size_bytes` is what it takes until then.
        """
        self.require_room()
        size_bytes += REQUEST_BYTES
        self._held.take(size_bytes)
        key, loop = (node, request_id), asyncio.get_running_loop()
        self._given_up.pop(hash(key), None)
        self._end(key)  # An id that is used again stands for the later request.
        self._waiting[key] = _Unanswered(loop.time() + self.answer_s, give_up, size_bytes)
        if self._timer is None:
            self._timer = loop.call_later(self.answer_s, self._end_overdue)

    def answered(self, node: Hashable, response: bytes) -> bool:
        """Note an answer; false: its request was given up, and the client has an answer."""
        try:
            request_id = decode_properties(split(response).properties).correlation_id
        except DecodeError:
            return True
        key = node, request_id
        if self._end(key) is None and hash(key) in self._given_up:
            del self._given_up[hash(key)]
            return False
        return True

    def close(self) -> None:
        """The client is gone: no request waits any more."""
        self._waiting.clear()
        self._given_up.clear()
        self._held.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, key: Key) -> _Unanswered | None:
        """The request of this id waits no more."""
        ended = self._waiting.pop(key, None)
        if ended is not None:
            self._held.give_back(ended.size_bytes)
        return ended

    def _end_overdue(self) -> None:
        self._timer, loop = None, asyncio.get_running_loop()
        now = loop.time()
        while self._waiting:
            key, first = next(iter(self._waiting.items()))
            if first.ends_at > now:
                self._timer = loop.call_at(first.ends_at, self._end_overdue)
                return
            self._end(key)
            self._given_up[hash(key)] = None
            if len(self._given_up) > GIVEN_UP_MAX:
                self._given_up.popitem(last=False)
            first.give_up()
