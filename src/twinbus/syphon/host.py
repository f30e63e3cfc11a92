"""Runs the relays of a pair: as long as an application runs, or until the backlog is empty."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from twinbus.client.connection import MACHINE, Environment
from twinbus.client.peeking import (
    destination_keys,
)
from twinbus.ledger import NullLedger
from twinbus.namespace.access import endpoint_of
from twinbus.options import SendAvailabilityOptions
from twinbus.status.document import SyphonQueueStatus
from twinbus.syphon.bookkeeping import OutageLog, RelayLedger
from twinbus.syphon.core.pacing import Pace, Rate
from twinbus.syphon.core.pump import ASKED, IntakeLimits, Pump
from twinbus.syphon.lease import Leases
from twinbus.syphon.relay import Relay
from twinbus.syphon.twin_relay import twin_relay
from twinbus.transfer.unpacking import Unpacker

log = logging.getLogger("twinbus.syphon")

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
            unfinished = {relay.queue for relay in self.relays if relay.is_unfinished}
            await self.leases.close(unfinished.intersection(self.queues))

    def pause(self, why: str = ASKED) -> None:
        """Receive nothing more and release what was not sent; what was sent is completed."""
        for relay in self.relays:
            relay.notify(partial(relay.pump.pause, why=why))

    def resume(self, why: str = ASKED) -> None:
        """Receive again, once no other reason to pause is left."""
        for relay in self.relays:
            relay.notify(partial(relay.pump.resume, why=why))

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


def giving_up(pump: Pump, now: float) -> dict[str, float]:
    """Return the missing destinations of a pump, and in how many seconds it gives them up."""
    return {path: round(max(0.0, at - now), 1) for path, at in pump.given_up_at.items()}
