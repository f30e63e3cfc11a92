"""The locks of sessions of a secondary in memory, for hosts that want the same ones."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from twinbus.amqp.events import Attached, Detached
from twinbus.amqp.link import ReceiverLink
from twinbus.amqp.performatives import Error
from twinbus.amqp.types import Symbol
from twinbus.client.connection import Environment
from twinbus.client.lock_validity import LEASE_LOCK_S
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.servicebus.conditions import SESSION_TAKEN


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class LockService:
    """The other end of every connection."""

    is_up: bool = True
    has_queue: bool = True
    holders: dict[str, tuple[HostLine, ReceiverLink]] = field(default_factory=dict)
    lines: list[HostLine] = field(default_factory=list)
    attaches: list[float] = field(default_factory=list)

    def environment(self, chance: float) -> Environment:
        return Environment(
            monotonic=now,
            since_boot=now,
            wall_ns=lambda: int(now() * 1e9),
            chance=lambda: chance,
            connect=self._connect,
            lock_duration_s=_described,
        )

    def _connect(self, _: object, on_event: Any, *, requests: Any) -> Any:
        return HostLine(self, on_event)

    def lose(self, line: HostLine, reason: str) -> None:
        """A connection ends, and the service frees its sessions."""
        self.holders = {key: held for key, held in self.holders.items() if held[0] is not line}
        if line in self.lines:
            self.lines.remove(line)
        if not line.lost.done():
            line.lost.set_result(reason)

    def go_down(self) -> None:
        self.is_up = False
        for line in list(self.lines):
            self.lose(line, "the secondary is down")


async def _described(*_: object) -> float:
    return LEASE_LOCK_S


class HostLine:
    """A connection of one host."""

    def __init__(self, service: LockService, on_event: Any) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.flows = 0
        self.session = self
        self._service, self._on_event = service, on_event

    async def open(self) -> None:
        if not self._service.is_up:
            raise ConnectionLost("the secondary is down")
        self._service.lines.append(self)

    async def authorize(self, path: str) -> None:
        if not self._service.has_queue:
            raise RequestRefused(f"The messaging entity '{path}' could not be found", 404, "")

    def attach_receiver(self, name: str, *, source: Any, target: Any) -> ReceiverLink:
        service, loop = self._service, asyncio.get_running_loop()
        link = ReceiverLink(self, name, 0)  # type: ignore[arg-type]
        [session] = source.filter.values()
        service.attaches.append(loop.time())
        if service.holders.get(session, (self, link))[1] is not link:
            error = Error(condition=Symbol(SESSION_TAKEN), description="it is locked")
            loop.call_soon(self._on_event, Detached(link, error, closed=True))
        else:
            service.holders[session] = self, link
            link.source = source
            loop.call_soon(self._on_event, Attached(link))
        return link

    def echo(self) -> None:
        self.flows += 1

    async def request(self, *_: object, **__: object) -> None:
        """A renewal, which is always granted."""

    def forget(self, link: ReceiverLink) -> None:
        held = self._service.holders
        self._service.holders = {key: one for key, one in held.items() if one[1] is not link}

    def write(self, *_: object) -> None:
        """Everything is written at once."""

    def flush(self) -> None:
        """Nothing waits to be written."""

    async def close(self) -> None:
        self._service.lose(self, "it was closed here")
