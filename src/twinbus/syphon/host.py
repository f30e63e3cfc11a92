"""Runs the relays of a pair: as long as an application runs, or until the backlog is empty."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from twinbus.client.administration import NotAnswered, counts_of
from twinbus.client.connection import MACHINE, Environment
from twinbus.client.peeked_message import ACTIVE
from twinbus.client.peeking import (
    NamespaceUnreachable,
    count_matching,
    destination_keys,
    open_connection,
    peek,
)
from twinbus.errors import SyphonError
from twinbus.ledger import NullLedger
from twinbus.ledger.requests import recording_to
from twinbus.namespace.access import Endpoint, endpoint_of
from twinbus.options import SendAvailabilityOptions
from twinbus.status.document import SyphonQueueStatus
from twinbus.syphon.bookkeeping import OutageLog, RelayLedger
from twinbus.syphon.core.pacing import Pace, Rate, ReconnectBackoff
from twinbus.syphon.core.pump import IntakeLimits, Pump
from twinbus.syphon.lease import Leases
from twinbus.syphon.relay import Relay
from twinbus.syphon.twin_relay import twin_relay
from twinbus.transfer.unpacking import Unpacker

log = logging.getLogger("twinbus.syphon")

IDLE_S: Final = 1.0
"""Pause between two counts of a queue that is being drained."""

SETTLE_S: Final = 0.02
"""Pause between two checks whether the pumps are idle; a check costs nothing."""

PEEK_AGAIN_S: Final = 10.0
"""Pause between two counts by peeking while nothing moves: each peeks at the whole queue."""

SELECTED_IN_MEMORY: Final = 200
"""Messages in memory of a pump that serves only some destinations. It defers those of others that
it receives on the way, and must not defer many beyond the last one that it moves."""


class SyphonGroup:
    """Hosts that are added as queues are found, and controlled as one."""

    def __init__(self, rate: Rate, environment: Environment = MACHINE) -> None:
        self.hosts: list[SyphonHost] = []
        self.rate = rate
        """What all hosts together may send to the primary."""
        self.is_paused = False
        self.environment = environment
        self.outages = OutageLog()
        """Shared by all hosts: an outage is logged once."""

    async def add(self, host: SyphonHost) -> None:
        """Add and start a host, paused if the others are."""
        if self.is_paused:
            host.pause()
        self.hosts.append(host)
        await host.start()

    async def remove(self, host: SyphonHost) -> None:
        """Close a host, and forget what it counted."""
        self.hosts.remove(host)
        await host.close()

    def pause(self) -> None:
        """Receive nothing more and release what was not sent; what was sent is completed."""
        self.is_paused = True
        for host in self.hosts:
            host.pause()

    def resume(self) -> None:
        self.is_paused = False
        for host in self.hosts:
            host.resume()

    def limit_rate(self, most_per_s: float | None) -> None:
        """Messages sent per second, at most; None: as fast as the primary takes them."""
        self.rate.limit_to(most_per_s)
        for host in self.hosts:
            host.rate_changed()

    def yield_to_callers(self) -> None:
        """Slow down: the primary throttles the sends of this application."""
        self.rate.governor.busy_for_others(self.environment.monotonic())

    @property
    def in_flight(self) -> int:
        return sum(host.in_flight for host in self.hosts)

    def status(self) -> dict[str, SyphonQueueStatus]:
        """Return for each backlog queue what was moved, what is in flight, and the problems."""
        return {queue: state for host in self.hosts for queue, state in host.status().items()}


class SyphonHost:
    """One relay for each backlog queue and each twin, from `start` to `close`."""

    def __init__(
        self,
        primary: object,
        secondary: object,
        queues: Sequence[str],
        options: SendAvailabilityOptions | None = None,
        ledger: RelayLedger | None = None,
        *,
        twins: Sequence[str] = (),
        limits: IntakeLimits | None = None,
        on_delivered: Callable[[str], None] | None = None,
        lease: bool | None = None,
        rate: Rate | None = None,
        only: Collection[str] | None = None,
        outages: OutageLog | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        """A side is a connection string, or an object with a `connection_string`.

        `twins` are queues of the secondary without sessions that are marked as twins. Each is
        emptied into its namesake in the primary; `limits`, leases and order do not concern them.
        `on_delivered` is called with the path of each entity of the primary that accepted a
        message. `lease`: each queue is pumped only while this host holds its lease; None: if the
        order is strict. `rate` limits all pumps that share it; None: one of its own, by `options`.
        `only` are the destinations to serve: messages of others that are received on the way are
        deferred, and stay so. Hosts of one process share `outages`, so that each outage is logged
        once.
        """
        options = options or SendAvailabilityOptions()
        is_strict = options.session_order == "strict"
        only = options.syphon_only if only is None else only
        self.only = None if only is None else destination_keys(only)
        self.rate = rate or Rate(options.syphon_rate)
        if self.only is not None and limits is None:
            limits = IntakeLimits(messages=SELECTED_IN_MEMORY)
        self.queues = queues = list(dict.fromkeys(queues))
        outages = outages or OutageLog()
        self.environment = environment
        self.primary = endpoint_of(primary)
        self.secondary = endpoint_of(secondary)
        self.ledger = ledger or NullLedger()
        self.leases: Leases | None = None
        if queues and (is_strict if lease is None else lease):
            self.leases = Leases(
                self.secondary, queues, self._lease_changed, self.ledger, environment
            )
        self.relays = [
            Relay(
                self.primary,
                self.secondary,
                queue,
                pump=Pump(
                    is_strict=is_strict,
                    limits=limits,
                    undeliverable_grace_s=options.undeliverable_grace_s,
                    poll_s=options.syphon_poll_s,
                    only=self.only,
                    pace=Pace(self.rate),
                    draw=environment.chance,
                ),
                ledger=self.ledger,
                unpack=Unpacker(remaining_ttl=options.ttl_policy == "remaining").unpack,
                on_delivered=on_delivered,
                lease=None if self.leases is None else partial(self.leases.holds, queue),
                outages=outages,
                environment=environment,
            )
            for queue in queues
        ]
        self.twins = list(dict.fromkeys(twins))
        self.relays += [
            twin_relay(
                self.primary,
                self.secondary,
                path,
                options,
                self.ledger,
                rate=self.rate,
                on_delivered=on_delivered,
                outages=outages,
                environment=environment,
            )
            for path in self.twins
        ]

    async def start(self) -> None:
        """Start the relays; return at once, even if a namespace cannot be reached."""
        if self.leases is not None:
            self.leases.start()
        for relay in self.relays:
            relay.start()

    async def close(self) -> None:
        """Wait for what is in flight, then close every connection."""
        await asyncio.gather(*(relay.close() for relay in self.relays))
        for relay in self.relays:
            if relay.pump.pace is not None:
                relay.pump.pace.leave()
        if self.leases is not None:
            await self.leases.close()

    def pause(self) -> None:
        """Receive nothing more and release what was not sent; what was sent is completed."""
        for relay in self.relays:
            relay.notify(relay.pump.pause)

    def resume(self) -> None:
        for relay in self.relays:
            relay.notify(relay.pump.resume)

    def limit_rate(self, most_per_s: float | None) -> None:
        """Messages sent per second, at most; None: as fast as the primary takes them."""
        self.rate.limit_to(most_per_s)
        self.rate_changed()

    def rate_changed(self) -> None:
        """Serve what waited for the old rate."""
        for relay in self.relays:
            relay.notify(relay.pump.rate_due)

    @property
    def is_paused(self) -> bool:
        return any(relay.pump.is_paused for relay in self.relays)

    @property
    def moved(self) -> int:
        """Messages that left the backlog: accepted by the primary, or dead-lettered."""
        return sum(relay.pump.completed + relay.pump.dead_lettered for relay in self.relays)

    @property
    def in_flight(self) -> int:
        return sum(relay.pump.in_flight for relay in self.relays)

    def status(self) -> dict[str, SyphonQueueStatus]:
        """Return for each backlog queue what was moved, what is in flight, and the problems."""
        now = self.environment.monotonic()
        return {
            relay.queue: SyphonQueueStatus(
                in_flight=relay.pump.in_flight,
                forwarded=relay.pump.forwarded,
                completed=relay.pump.completed,
                dead_lettered=relay.pump.dead_lettered,
                deferred=relay.pump.deferred,
                not_served=relay.pump.not_served,
                held=relay.pump.held,
                gives_up_in_s=giving_up(relay.pump, now),
                problems=self.problems(relay),
                paused=relay.pump.is_paused,
                rate_per_s=round(relay.pump.meter.per_s(now), 1),
                limit=self.rate.governor.limit,
            )
            for relay in self.relays
        }

    def problems(self, relay: Relay) -> dict[str, str]:
        """Return what stops one relay: a side, the lease or a message, and why."""
        found = dict(relay.problems)
        if self.leases is not None and relay.queue not in self.twins:
            waits = self.leases.problem(relay.queue)
            found |= {"lease": waits} if waits else {}
        return found | ({"message": relay.pump.left} if relay.pump.left else {})

    def _lease_changed(self, queue: str, is_held: bool) -> None:
        for relay in (one for one in self.relays if one.queue == queue):
            relay.lease_changed(is_held)


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


def giving_up(pump: Pump, now: float) -> dict[str, float]:
    """Return the missing destinations of a pump, and in how many seconds it gives them up."""
    return {path: round(max(0.0, at - now), 1) for path, at in pump.given_up_at.items()}


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
