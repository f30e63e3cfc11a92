"""Runs a syphon host until its backlog queues and twins are empty."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from twinbus.client.administration import NotAnswered, counts_of
from twinbus.client.connection import MACHINE
from twinbus.client.peeked_message import ACTIVE
from twinbus.client.peeking import (
    NamespaceUnreachable,
    count_matching,
    destination_keys,
    open_connection,
    peek,
)
from twinbus.errors import SyphonError
from twinbus.ledger.requests import recording_to
from twinbus.namespace.access import Endpoint, endpoint_of
from twinbus.options import SendAvailabilityOptions
from twinbus.syphon.bookkeeping import RelayLedger
from twinbus.syphon.core.pacing import Rate, ReconnectBackoff
from twinbus.syphon.core.pump import IntakeLimits
from twinbus.syphon.host import SyphonHost, giving_up

log = logging.getLogger("twinbus.syphon")

IDLE_S: Final = 1.0
"""Pause between two counts of a queue that is being drained."""

SETTLE_S: Final = 0.02
"""Pause between two checks whether the pumps are idle; a check costs nothing."""

PEEK_AGAIN_S: Final = 10.0
"""Pause between two counts by peeking while nothing moves: each peeks at the whole queue."""


@dataclass(frozen=True, slots=True)
class DrainProgress:
    waiting: int
    """Messages left in all queues: active, locked, scheduled, deferred."""
    forwarded: int
    dead_lettered: int
    problems: tuple[str, ...] = ()
    """Why messages are not moved."""
    giving_up: Mapping[str, float] = field(default_factory=dict)
    """Missing destinations, and in how many seconds their messages are dead-lettered."""
    not_served: int = 0
    """Messages of destinations that are not served, deferred on the way."""
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class DrainStats:
    """What a drain did, as this process saw it; for exact counts use the ledger."""

    forwarded: int
    completed: int
    dead_lettered: int
    seconds: float
    not_served: int = 0
    """Messages of destinations that are not served, deferred on the way and left so."""


async def drain(
    primary: object,
    secondary: object,
    queues: Sequence[str],
    *,
    twins: Sequence[str] = (),
    ledger: RelayLedger | None = None,
    idle_s: float = IDLE_S,
    on_progress: Callable[[DrainProgress], None] | None = None,
    options: SendAvailabilityOptions | None = None,
    limits: IntakeLimits | None = None,
    lease: bool | None = None,
    rate: Rate | None = None,
    only: Collection[str] | None = None,
) -> DrainStats:
    """Move everything out of these backlog queues and twins; return when all are empty.

    A twin is empty when it holds no active message: its scheduled ones are not due, and its
    deferred ones belong to its consumers.
    It runs on while messages cannot be delivered; cancelling it loses nothing. Raise SyphonError if
    a queue does not exist, if its counts are refused, or if a pump fails. With `only`, return when
    no message to these destinations is left; queues that hold none are not touched.
    """
    if only is None and options is not None:
        only = options.syphon_only
    if only is not None:
        with recording_to(ledger):
            found = await _count_matching(endpoint_of(secondary), queues, destination_keys(only))
        queues = [queue for queue, count in found.items() if count]
    host = SyphonHost(
        primary,
        secondary,
        queues,
        options,
        ledger,
        twins=twins,
        limits=limits,
        lease=lease,
        rate=rate,
        only=only,
    )
    return await drain_host(host, idle_s=idle_s, on_progress=on_progress)


async def _count_matching(
    secondary: Endpoint, queues: Sequence[str], only: frozenset[str]
) -> dict[str, int]:
    """Count the messages to these destinations; retry until the secondary answers."""
    backoff = ReconnectBackoff(MACHINE.chance)
    level = logging.WARNING
    while True:
        try:
            return await count_matching(secondary, queues, only)
        except NamespaceUnreachable as error:
            log.log(level, "counting messages to %s: %s", ", ".join(sorted(only)), error)
            level = logging.DEBUG
            await asyncio.sleep(backoff.after(0.0))


async def drain_host(
    host: SyphonHost,
    *,
    idle_s: float = IDLE_S,
    on_progress: Callable[[DrainProgress], None] | None = None,
) -> DrainStats:
    """Run a host until its queues are empty, then close it; otherwise as `drain`."""
    began = host.environment.monotonic()
    with recording_to(host.ledger):
        await _total(host)
        await host.start()
        try:
            await _until_empty(host, idle_s, on_progress)
        finally:
            await host.close()
    pumps = [relay.pump for relay in host.relays]
    return DrainStats(
        forwarded=sum(pump.forwarded for pump in pumps),
        completed=sum(pump.completed for pump in pumps),
        dead_lettered=sum(pump.dead_lettered for pump in pumps),
        seconds=host.environment.monotonic() - began,
        not_served=sum(pump.not_served for pump in pumps),
    )


async def _until_empty(
    host: SyphonHost, idle_s: float, on_progress: Callable[[DrainProgress], None] | None
) -> None:
    remaining = _RemainingMessages(host)
    known = 0
    while True:
        if fault := next((relay.fault for relay in host.relays if relay.fault), None):
            raise SyphonError(fault)
        waiting = await remaining.waiting()
        if on_progress is not None:
            # While the secondary does not answer, show the last number; the problems say why.
            known = known if waiting is None else waiting
            on_progress(_progress(host, known))
        if waiting == 0 and host.in_flight == 0 and await remaining.is_confirmed():
            return
        # Count a quiet queue at once, a busy one from time to time.
        ends, moved = host.environment.monotonic() + idle_s, host.moved
        while host.environment.monotonic() < ends:
            await asyncio.sleep(SETTLE_S)
            if host.in_flight == 0 and host.moved > moved:
                break


class _RemainingMessages:
    """Counts what a host has still to move."""

    def __init__(self, host: SyphonHost) -> None:
        self._host = host
        self._found = self._moved = 0
        """Messages to the selected destinations at the last peek, and `host.moved` then."""
        self._moved_before = 0
        """`host.moved` at the last call."""
        self._peek_at = 0.0
        self._level = logging.WARNING
        """Of the log line that the secondary does not answer: one warning for each time."""

    async def waiting(self) -> int | None:
        """Return how many messages are left; None while the secondary does not answer."""
        waiting = await self._count()
        self._level = logging.WARNING if waiting is not None else logging.DEBUG
        return waiting

    async def is_confirmed(self) -> bool:
        """Return whether a peek finds all queues empty too: the counts of a namespace lag behind.

        With selected destinations the count of backlog queues was made by peeking.
        """
        host = self._host
        queues = host.queues if host.only is None else []
        try:
            async with open_connection(host.secondary) as connection:
                for queue in queues:
                    async with aclosing(peek(connection, queue, page=1)) as messages:
                        if await anext(messages, None) is not None:
                            return False
                for twin in host.twins:
                    async with aclosing(peek(connection, twin)) as messages:
                        async for message in messages:
                            if message.state == ACTIVE:
                                return False
        except SyphonError as error:
            log.log(self._level, "peeking whether anything is left: %s", error)
            return False
        return True

    async def _count(self) -> int | None:
        host = self._host
        if host.only is None:
            return await _total(host, self._level)
        in_twins = await _total(host, self._level, queues=())
        if in_twins is None:
            return None
        in_queues = await self._count_selected(host.only)
        return None if in_queues is None else in_queues + in_twins

    async def _count_selected(self, only: frozenset[str]) -> int | None:
        host = self._host
        expected = self._found - (host.moved - self._moved)
        now = host.environment.monotonic()
        if host.moved > self._moved_before:
            # A peek reads the whole of the queues: not while the counters move.
            self._moved_before, self._peek_at = host.moved, now + PEEK_AGAIN_S
        if expected > 0 and now < self._peek_at:
            return expected
        try:
            found = await count_matching(host.secondary, host.queues, only)
        except SyphonError as error:
            log.log(self._level, "counting what is left: %s", error)
            return None
        self._found, self._moved = sum(found.values()), host.moved
        self._peek_at = host.environment.monotonic() + PEEK_AGAIN_S
        return self._found


def _progress(host: SyphonHost, waiting: int) -> DrainProgress:
    problems = [
        f"{side}: {why}" for relay in host.relays for side, why in host.problems(relay).items()
    ]
    problems += [f"{path}: {why}" for relay in host.relays for path, why in relay.pump.held.items()]
    return DrainProgress(
        waiting=waiting,
        forwarded=sum(relay.pump.forwarded for relay in host.relays),
        dead_lettered=sum(relay.pump.dead_lettered for relay in host.relays),
        problems=tuple(dict.fromkeys(problems)),
        giving_up={
            path: left_s
            for relay in host.relays
            for path, left_s in giving_up(relay.pump, host.environment.monotonic()).items()
        },
        not_served=sum(relay.pump.not_served for relay in host.relays),
        is_paused=host.is_paused,
    )


async def _total(
    host: SyphonHost, level: int = logging.WARNING, queues: Sequence[str] | None = None
) -> int | None:
    """Count the messages in all twins and queues, or these; None while there is no answer."""
    queues = host.queues if queues is None else queues
    paths = [*queues, *host.twins]
    try:
        counts = await asyncio.gather(*(counts_of(host.secondary, path) for path in paths))
    except NotAnswered as error:
        log.log(level, "counting what is left: %s", error)
        return None
    in_queues, in_twins = counts[: len(queues)], counts[len(queues) :]
    return sum(one.waiting for one in in_queues) + sum(one.active for one in in_twins)
