"""Mixed load on a broker until it is killed, by fast raw clients that note what they were told.

They send (single messages, batches, sessions) and receive (peek-lock, sessions, receive-and-delete)
all the time.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from tests.end_to_end.history import History, SessionHistory
from tests.end_to_end.raw_client import (
    PATIENCE_S,
    ConnectionLost,
    Delivery,
    RawClient,
    RawReceiver,
    batch,
    message,
)
from tests.official_sdk import administration
from tests.processes import ServedBroker

WINDOW = 200
BATCH = 10
TAKING_CREDIT = 20
SESSIONS = 6
WAITING_MAX = 20_000
"""Senders pause while a queue holds more, so that the last drain stays short."""

BODY = b"x" * 500
DRAINED_S = 1.0
"""A queue that gives nothing for so long is empty, if nothing is missed."""

SILENCES_MAX = 30
"""In a row, before what is missed is lost: a machine that is busy may be slow to deliver."""


class Load:
    """Everything that talks to the broker, and what each heard of it."""

    def __init__(self, broker: ServedBroker, rounds: int) -> None:
        self.text = broker.connection_string()
        self.plain = History("plain")
        self.taken = History("taken", may_vanish=rounds * TAKING_CREDIT)
        self.sessions = [SessionHistory(f"session-{number}") for number in range(SESSIONS)]
        self.sdk = History("sdk")
        self._keys = itertools.count()
        self._kills = 0

    @property
    def histories(self) -> list[History]:
        return [self.plain, self.taken, self.sdk, *self.sessions]

    async def run_until_cut(self) -> None:
        """Work until the connection breaks."""
        work = [
            self._send("plain", self.plain, 1),
            self._send("plain", self.plain, BATCH),
            self._send("taken", self.taken, 1),
            *(self._send_session(history) for history in self.sessions),
            self._complete("plain", self.plain),
            self._complete("plain", self.plain),
            self._take("taken", self.taken),
            *(self._complete_session(history) for history in self.sessions),
        ]
        ended = await asyncio.gather(*map(_until_cut, work), return_exceptions=True)
        for each in ended:
            if isinstance(each, BaseException):
                raise each

    async def until_used(self) -> None:
        """Wait until each history has more confirmations than there were kills, this one too.

        A busy machine may need longer for that than a round lasts; past the patience it is left
        to the test to find it.
        """
        self._kills += 1
        used = [history for history in self.histories if history is not self.sdk]
        ends = asyncio.get_running_loop().time() + PATIENCE_S
        while asyncio.get_running_loop().time() < ends:
            if all(len(history.confirmed) > self._kills for history in used):
                return
            await asyncio.sleep(0.01)

    async def drain(self) -> None:
        """Receive all that is left."""
        await asyncio.gather(
            self._complete("plain", self.plain, drain=True),
            self._complete("sdk", self.sdk, drain=True),
            self._take("taken", self.taken, drain=True),
            *(self._complete_session(history, drain=True) for history in self.sessions),
        )

    async def _send(self, queue: str, history: History, size: int) -> None:
        def next_batch() -> tuple[list[str], bytes]:
            keys = [str(next(self._keys)) for _ in range(size)]
            parts = [message(key, BODY) for key in keys]
            return keys, batch(parts) if size > 1 else parts[0]

        await self._send_all(queue, history, next_batch, is_batch=size > 1)

    async def _send_session(self, history: SessionHistory) -> None:
        def next_message() -> tuple[list[str], bytes]:
            key = str(next(self._keys))
            return [key], message(key, BODY, session=history.name)

        await self._send_all("ordered", history, next_message, is_batch=False)

    async def _send_all(
        self,
        queue: str,
        history: History,
        make: Callable[[], tuple[list[str], bytes]],
        *,
        is_batch: bool,
    ) -> None:
        connection = await RawClient.open(self.text)
        sender = await connection.sender(queue)
        window = asyncio.Semaphore(WINDOW)
        while True:
            await window.acquire()
            await sender.room()
            while history.waiting > WAITING_MAX // len(self.histories):
                await asyncio.sleep(0.01)
                await sender.room()
            keys, payload = make()
            history.attempt(*keys)
            answer = sender.send(payload, is_batch=is_batch)
            answer.add_done_callback(_then(history.acknowledge, *keys))
            answer.add_done_callback(lambda _: window.release())
            await asyncio.sleep(0)  # the others' turn

    async def _complete(self, queue: str, history: History, *, drain: bool = False) -> None:
        connection = await RawClient.open(self.text)
        receiver = await connection.receiver(queue, credit=WINDOW)
        await self._settle_all(receiver, history, drain=drain)
        await connection.close()

    async def _complete_session(self, history: SessionHistory, *, drain: bool = False) -> None:
        connection = await RawClient.open(self.text)
        receiver = await connection.receiver("ordered", credit=WINDOW, session=history.name)
        history.accept()
        await self._settle_all(receiver, history, drain=drain)
        await connection.close()

    async def _settle_all(self, receiver: RawReceiver, history: History, *, drain: bool) -> None:
        silences = 0
        while True:
            delivery = await receiver.receive(DRAINED_S)
            if delivery is None:
                silences += 1
                if drain and (history.is_whole or silences > SILENCES_MAX):
                    return
                continue
            silences = 0
            history.arrive(delivery.key)
            history.ask(delivery.key)
            confirmed = receiver.complete(delivery)
            confirmed.add_done_callback(_then(history.confirm, delivery.key))

    async def _take(self, queue: str, history: History, *, drain: bool = False) -> None:
        connection = await RawClient.open(self.text)
        receiver = await connection.receiver(queue, credit=TAKING_CREDIT, settled=True)
        silences = 0
        while True:
            delivery: Delivery | None = await receiver.receive(DRAINED_S)
            silences = silences + 1 if delivery is None else 0
            if delivery is not None:
                history.take(delivery.key)
            elif drain and (history.is_whole or silences > SILENCES_MAX):
                break
        await connection.close()


def create_queues(broker: ServedBroker) -> None:
    """Create what the load uses."""
    with administration(broker.connection_string()) as admin:
        for name in ("plain", "taken", "sdk"):
            admin.create_queue(name)
        admin.create_queue("ordered", requires_session=True)


async def load_and_kill(load: Load, broker: ServedBroker, seconds: float) -> None:
    """Work for some time, then kill the broker in the middle of it."""

    async def kill_later() -> None:
        await asyncio.sleep(seconds)
        await load.until_used()
        broker.process.kill()

    await asyncio.gather(load.run_until_cut(), kill_later())


async def _until_cut(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except ConnectionLost:
        return
    raise AssertionError("work ended before the broker was killed")


def _then(note: Callable[..., None], *keys: str) -> Callable[[asyncio.Future[None]], None]:
    def look(future: asyncio.Future[None]) -> None:
        if not future.cancelled() and future.exception() is None:
            note(*keys)

    return look
