"""Output of a relayed connection, some of it held back for a time.

A frame that waits holds back the later frames of its session in its direction, so that transfers
keep their order; other sessions go on.
"""

from __future__ import annotations

from collections import deque

from twinbus.broker.faults import Direction
from twinbus.proxy.core.links import TO_CLIENT, TO_SERVICE


class HeldOutput:
    def __init__(self) -> None:
        self._due: dict[Direction, list[bytes]] = {TO_SERVICE: [], TO_CLIENT: []}
        self._held: dict[Direction, dict[int, deque[tuple[int, bytes]]]] = {
            TO_SERVICE: {},
            TO_CLIENT: {},
        }
        self._held_bytes: dict[Direction, int] = {TO_SERVICE: 0, TO_CLIENT: 0}

    def put(
        self, direction: Direction, channel: int, data: bytes, now_ms: int, delay_ms: int = 0
    ) -> None:
        """Add bytes of a session, which leave after the delay and after all that it holds."""
        held = self._held[direction]
        queue = held.get(channel)
        if queue is None:
            if not delay_ms:
                self._due[direction].append(data)
                return
            queue = held[channel] = deque()
        until_ms = now_ms + delay_ms
        queue.append((max(until_ms, queue[-1][0]) if queue else until_ms, data))
        self._held_bytes[direction] += len(data)

    def put_last(self, direction: Direction, data: bytes, now_ms: int) -> None:
        """Add bytes that end the connection: they leave after everything else."""
        held = self._held[direction]
        if not held:
            self._due[direction].append(data)
            return
        last_channel = max(held, key=lambda channel: held[channel][-1][0])
        self.put(direction, last_channel, data, now_ms)

    def held_bytes(self, direction: Direction) -> int:
        return self._held_bytes[direction]

    def take(self, direction: Direction, now_ms: int) -> bytes:
        """What is to be written now."""
        held = self._held[direction]
        for channel, queue in list(held.items()):
            while queue and queue[0][0] <= now_ms:
                _, data = queue.popleft()
                self._held_bytes[direction] -= len(data)
                self._due[direction].append(data)
            if not queue:
                del held[channel]
        data = b"".join(self._due[direction])
        self._due[direction].clear()
        return data

    def next_ms(self) -> int | None:
        """When something that is held leaves; None: nothing is held."""
        queues = (queue for held in self._held.values() for queue in held.values())
        return min((queue[0][0] for queue in queues), default=None)
