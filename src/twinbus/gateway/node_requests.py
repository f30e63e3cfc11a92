"""Requests to `$management` nodes of the primary that wait for their answers, with a time limit.

A primary that hangs answers nothing and keeps its connection: without a limit a client would wait
for as long as its own patience lasts, and tell nobody why.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final

from twinbus.amqp.message import decode_properties, split
from twinbus.amqp.types import DecodeError

GIVEN_UP_MAX: Final = 1_000
"""Requests of one client whose late answers are dropped; the answers of older ones are handed on,
and the client knows no request that they belong to."""

Key = tuple[Hashable, Hashable]
"""A node, and the id of a request."""


class UnansweredRequests:
    """The requests of one client that the primary has not answered."""

    def __init__(self, answer_s: float) -> None:
        self.answer_s = answer_s
        self._waiting: dict[Key, Callable[[], None]] = {}
        self._ends: deque[tuple[float, Key, Callable[[], None]]] = deque()
        """When each is given up; the first ends first."""
        self._given_up: OrderedDict[Key, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, node: Hashable, request_id: Hashable, give_up: Callable[[], None]) -> None:
        """Call `give_up` if the request is not answered in time."""
        key, loop = (node, request_id), asyncio.get_running_loop()
        self._given_up.pop(key, None)
        self._waiting[key] = give_up
        self._ends.append((loop.time() + self.answer_s, key, give_up))
        if self._timer is None:
            self._timer = loop.call_at(self._ends[0][0], self._end_overdue)

    def answered(self, node: Hashable, response: bytes) -> bool:
        """Note an answer; false: its request was given up, and the client has an answer."""
        try:
            request_id = decode_properties(split(response).properties).correlation_id
        except DecodeError:
            return True
        key = node, request_id
        if self._waiting.pop(key, None) is None and key in self._given_up:
            del self._given_up[key]
            return False
        return True

    def close(self) -> None:
        """The client is gone: nobody waits."""
        self._waiting.clear()
        self._ends.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _end_overdue(self) -> None:
        self._timer, loop = None, asyncio.get_running_loop()
        now = loop.time()
        while self._ends and self._ends[0][0] <= now:
            _, key, give_up = self._ends.popleft()
            if self._waiting.get(key) is give_up:  # Else it is answered; its id may be used again.
                del self._waiting[key]
                self._given_up[key] = None
                if len(self._given_up) > GIVEN_UP_MAX:
                    self._given_up.popitem(last=False)
                give_up()
        if self._ends:
            self._timer = loop.call_at(self._ends[0][0], self._end_overdue)
