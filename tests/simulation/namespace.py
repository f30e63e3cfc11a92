"""A simulated namespace: the broker's real engine and memory store, which crash, stop and refuse.

What was performed is on disk before its answer leaves, so that a crash loses nothing that anybody
was told of; what had not arrived is as if never sent. A crash frees all locks and breaks all wires.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

from tests.simulation.machine import NOBODY
from twinbus.broker.engine.limits import ADMINISTRATION_COST, CreditAccount
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import LockedMessage
from twinbus.broker.engine.topic import Topic
from twinbus.broker.journal import StoredMessage
from twinbus.broker.messages.incoming import parse
from twinbus.broker.messages.rendering import render
from twinbus.broker.refusals import EntityNotFound, Refusal
from twinbus.broker.storage.store import MemoryStore

if TYPE_CHECKING:
    from tests.simulation.machine import SimLoop
    from tests.simulation.network import Wire
    from tests.simulation.truth import Deed

EPOCH_MS: Final = 1_800_000_000_000
"""The date at which every simulation begins."""

TIMER_FLOOR_S: Final = 0.001


class Consumer:
    """The namespace's end of a link that receives from a queue."""

    def __init__(
        self,
        queue: Queue,
        deliver: Callable[[LockedMessage, bytes], None],
        detach: Callable[[Refusal], None],
    ) -> None:
        self.queue = queue
        self.credit = 0
        self.deliver = deliver
        self.detach = detach


class Throttle:
    """Answers server-busy to what is sent above a rate, by the broker's own credits."""

    def __init__(self, per_s: float) -> None:
        self._account = CreditAccount(per_s)
        self.answers: list[tuple[float, str, bool]] = []
        """Time and kind (send, divert, forward, ping) of each request, and whether it was taken."""

    def require(self, kind: str, messages: int, now: float) -> None:
        """Count messages; ServerBusy if this second took as many as the rate allows."""
        refused_before = self._account.throttled
        try:
            self._account.require(messages, round(now * 1000))
        finally:
            self.answers.append((now, kind, self._account.throttled == refused_before))


class SimNamespace:
    """One namespace, alive or not."""

    def __init__(
        self,
        loop: SimLoop,
        name: str,
        performed: Callable[[SimNamespace, Deed, bytes], None],
        credits_per_s: float | None = None,
    ) -> None:
        """`performed` is told of every message that was stored, with its wire form.

        With `credits_per_s` the namespace throttles as the profile azure-standard does.
        """
        self.name = name
        self._short: set[Queue] = set()
        """Queues whose deliveries wait for the credits of the next second."""
        self.credits = None if credits_per_s is None else CreditAccount(credits_per_s)
        self.is_up = True
        self.is_dark = False
        self.is_stopped = False
        self.generation = 0
        self.wires: dict[Wire, None] = {}
        self.refusals: dict[str, Callable[[str], Refusal]] = {}
        """Path ("*": every path) and what it answers to sends, pings and attaches now."""
        self.throttle: Throttle | None = None
        self.store = MemoryStore()
        self._loop = loop
        self._performed = performed
        # Lock tokens; no two namespaces give the same one.
        self._numbers = count(1 if name == "secondary" else 1 << 64)
        self._consumers: dict[Queue, deque[Consumer]] = {}
        self.requests: Counter[str] = Counter()
        """Its own count of the requests that a service bills and that move no message."""
        self._ready: dict[Queue, None] = {}
        self._waiting: list[tuple[Wire, Callable[[], None]]] = []
        self._watchers: dict[str, list[Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.engine = self._restored()

    def now_ms(self) -> int:
        return EPOCH_MS + round(self._loop.time() * 1000)

    @property
    def serves(self) -> bool:
        """Whether it does what it is asked, by administrators for one."""
        return self.is_up and not self.is_stopped

    # Its own troubles

    def crash(self, *, dark: bool) -> None:
        """Die; `dark`: the whole machine, so that nobody is told."""
        self.is_up, self.is_dark, self.is_stopped = False, dark, False
        self.generation += 1
        self._waiting.clear()
        self._consumers.clear()
        self._watchers.clear()
        for wire in list(self.wires):
            wire.crashed(dark=dark)
        self.wires.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def restart(self) -> None:
        """Go on from what is on disk."""
        if not self.is_up:
            self.is_up, self.is_dark = True, False
            self.engine = self._restored()
            self.settle()

    def stop(self) -> None:
        """SIGSTOP: whatever arrives waits."""
        self.is_stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        if self.is_stopped:
            self.is_stopped = False
            waiting, self._waiting = self._waiting, []
            for wire, action in waiting:
                self.take(wire, action)
            self.settle()

    def _restored(self) -> BrokerNamespace:
        self._ready = {}
        engine = BrokerNamespace(
            self.name,
            self.store,
            lambda: next(self._numbers).to_bytes(16, "big"),
            notify=lambda queue: self._ready.__setitem__(queue, None),
            deleted=self._deleted,
        )
        engine.restore(self.store.recover(), self.now_ms())
        return engine

    # What arrives

    def take(self, wire: Wire, action: Callable[[], None]) -> None:
        """Something arrived on a wire."""
        if not self.is_up:
            return
        if self.is_stopped:
            wire.hit("the namespace was stopped")
            self._waiting.append((wire, action))
            return
        action()
        self.settle()

    def settle(self) -> None:
        """Hand out what has become ready, and be called again when the engine wants to be."""
        if self.is_stopped or not self.is_up:
            return
        while self._ready:
            queue, _ = self._ready.popitem()
            self._dispatch(queue)
        due_ms = self.engine.next_deadline_ms()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_ms:
            wait_s = max(TIMER_FLOOR_S, (due_ms - self.now_ms()) / 1000)
            self._timer = self._loop.call_later(wait_s, self._on_timer, context=NOBODY)

    def _on_timer(self) -> None:
        self._timer = None
        if self.is_up and not self.is_stopped:
            self.engine.run_timers(self.now_ms())
            self.settle()

    def _dispatch(self, queue: Queue) -> None:
        consumers = self._consumers.get(queue)
        for _ in range(len(consumers or ())):
            assert consumers is not None
            consumer = consumers[0]
            consumers.rotate(-1)
            limit = self._affordable(queue, consumer.credit)
            if limit <= 0:
                continue
            try:
                deliveries = queue.acquire(consumer, limit, self.now_ms())
            except Refusal as refusal:
                self.remove_consumer(consumer)
                consumer.detach(refusal)
                return
            if self.credits is not None:
                self.credits.spend(len(deliveries), self.now_ms())
            for delivery in deliveries:
                consumer.credit -= 1
                consumer.deliver(delivery, self.rendered(queue, delivery))

    def _affordable(self, queue: Queue, limit: int) -> int:
        """How many messages may be delivered now; the rest goes on in the next second."""
        if self.credits is None:
            return limit
        now_ms = self.now_ms()
        left = int(self.credits.left(now_ms))
        if left < limit and queue.messages and queue not in self._short:
            self._short.add(queue)
            wait_s = self.credits.wait_ms(now_ms) / 1000
            self._loop.call_later(wait_s, self._refilled, queue, context=NOBODY)
        return min(limit, left)

    def _refilled(self, queue: Queue) -> None:
        self._short.discard(queue)
        self._ready[queue] = None
        self.settle()

    def rendered(self, queue: Queue, delivery: LockedMessage) -> bytes:
        """A locked message as its receiver gets it."""
        payload = self.store.payload(queue.entity_id, delivery.message.sequence_number)
        return render(
            payload,
            delivery.message,
            locked_until_ms=delivery.locked_until_ms,
            lock_token=delivery.lock_token,
        )

    # What is asked of it

    def require_willing(self, path: str) -> None:
        """Raise the refusal that was ordered for a path."""
        refusal = self.refusals.get(path.lower()) or self.refusals.get("*")
        if refusal is not None:
            raise refusal(f"{path} was told to refuse")

    def charge(self, cost: int) -> None:
        """Subtract the credits of a request; `ServerBusy` if none is left."""
        if self.credits is not None:
            self.credits.require(cost, self.now_ms())

    def administered(self) -> None:
        """Count a request of an administrator."""
        self.requests["administration"] += 1
        self.charge(ADMINISTRATION_COST)

    def attach_sender(self, path: str) -> int:
        """The size that the entity takes; a refusal if it cannot be sent to."""
        self.require_willing(path)
        return self.engine.send_target(path).max_message_bytes

    def send(self, path: str, wires: Sequence[bytes], deed: Deed) -> None:
        """Store messages, all or none."""
        self.require_willing(path)
        self.charge(len(wires))
        if self.throttle is not None:
            self.throttle.require(deed.kind, len(wires), self._loop.time())
        target = self.engine.send_target(path)
        batch = [parse(wire, lambda: "given by the broker") for wire in wires]
        self.engine.send(target, batch, self.now_ms())
        deed.entity_id = target.entity_id
        for wire, incoming in zip(wires, batch, strict=True):
            if not incoming.is_ping:
                self._performed(self, deed, wire)

    def add_consumer(self, consumer: Consumer) -> None:
        """Let a link take part in its queue's deliveries."""
        self._consumers.setdefault(consumer.queue, deque()).append(consumer)
        self._ready[consumer.queue] = None

    def remove_consumer(self, consumer: Consumer) -> None:
        """The link is gone; what it holds stays locked until that ends by itself."""
        consumers = self._consumers.get(consumer.queue)
        if consumers is not None and consumer in consumers:
            consumers.remove(consumer)

    def granted(self, consumer: Consumer, credit: int) -> None:
        """A link may be sent so many messages from now on."""
        if credit and consumer.credit and not consumer.queue.messages:
            self.requests["receive"] += 1  # A receive that found nothing ends, and the next begins.
        consumer.credit = credit
        self._ready[consumer.queue] = None

    def on_deleted(self, path: str, watcher: Callable[[], None]) -> None:
        """Have `watcher` called when the entity is deleted."""
        self._watchers.setdefault(path.lower(), []).append(watcher)

    def _deleted(self, path: str) -> None:
        for watcher in self._watchers.pop(path.lower(), ()):
            watcher()

    # What is in it

    def contents(self, path: str) -> list[tuple[StoredMessage, bytes]]:
        """Every message of an entity as stored, in order; of a topic, its first subscription's."""
        try:
            entity = self.engine.resolve(path)
        except EntityNotFound:
            return []
        if isinstance(entity, Topic):
            first = next(iter(entity.subscriptions.values()))
            return self._all_of(entity.schedule) + self._all_of(first)
        return self._all_of(entity)

    def dead_letters(self, path: str) -> list[tuple[StoredMessage, bytes]]:
        """What is in the dead-letter queue of an entity; of a topic, of its first subscription."""
        try:
            queue = self.engine.resolve(path)
        except EntityNotFound:
            return []
        if isinstance(queue, Topic):
            queue = next(iter(queue.subscriptions.values()))
        assert queue.dead_letter is not None
        return self._all_of(queue.dead_letter)

    def _all_of(self, queue: Queue) -> list[tuple[StoredMessage, bytes]]:
        found = queue.peek(0, 1_000_000, self.now_ms())
        return [(each, self.store.payload(queue.entity_id, each.sequence_number)) for each in found]
