"""Runs the relays of a pair: inside an application for as long as it lives, or once until empty."""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from twinbus.errors import SyphonError
from twinbus.options import SendAvailabilityOptions
from twinbus.syphon.bookkeeping import Ledger
from twinbus.syphon.counts import CountsUnavailable, QueueCounts, counts_of
from twinbus.syphon.endpoint import Endpoint, endpoint_of
from twinbus.syphon.pump import Limits, Pump
from twinbus.syphon.relay import Relay

__all__ = ["DrainProgress", "DrainStats", "PumpFactory", "SyphonHost", "drain"]

log = logging.getLogger("twinbus.syphon")

IDLE_S: Final = 1.0
"""Between two looks at the counts of a queue that is being drained."""

SETTLE_S: Final = 0.02
"""Between two looks at whether the pumps are idle, which costs nothing."""


class PumpFactory(Protocol):
    """Makes the pump of one backlog queue; tests put faulty ones in."""

    def __call__(
        self, *, limits: Limits | None, undeliverable_grace_s: float, poll_s: float
    ) -> Pump:
        """A pump that has received nothing yet."""


class SyphonHost:
    """One relay for each backlog queue, from `start` to `close`."""

    def __init__(
        self,
        primary: object,
        secondary: object,
        queues: Sequence[str],
        options: SendAvailabilityOptions | None = None,
        ledger: Ledger | None = None,
        *,
        limits: Limits | None = None,
        pump_factory: PumpFactory | str | None = None,
        on_delivered: Callable[[str], None] | None = None,
    ) -> None:
        """A side is a connection string, or something with a `connection_string`.

        `pump_factory` may be named as "module:attribute", for processes that cannot be handed one.
        `on_delivered` gets the path of each entity of the primary that took a message.
        """
        options = options or SendAvailabilityOptions()
        make_pump = _factory(pump_factory)
        self.primary = endpoint_of(primary)
        self.secondary = endpoint_of(secondary)
        self.relays = [
            Relay(
                self.primary,
                self.secondary,
                queue,
                pump=make_pump(
                    limits=limits,
                    undeliverable_grace_s=options.undeliverable_grace_s,
                    poll_s=options.syphon_poll_s,
                ),
                ledger=ledger or _NoLedger(),
                remaining_ttl=options.ttl_policy == "remaining",
                on_delivered=on_delivered,
            )
            for queue in dict.fromkeys(queues)
        ]

    async def start(self) -> None:
        """Begin to syphon; returns at once, whether the namespaces can be reached or not."""
        for relay in self.relays:
            relay.start()

    async def close(self) -> None:
        """Wait for what is in flight, then let every connection go."""
        await asyncio.gather(*(relay.close() for relay in self.relays))

    @property
    def in_flight(self) -> int:
        """Messages received and not yet settled."""
        return sum(relay.pump.in_flight for relay in self.relays)

    def status(self) -> dict[str, dict[str, Any]]:
        """For each backlog queue: what was moved, what is under way, what is in the way."""
        return {
            relay.queue: {
                "in_flight": relay.pump.in_flight,
                "forwarded": relay.pump.forwarded,
                "completed": relay.pump.completed,
                "dead_lettered": relay.pump.dead_lettered,
                "deferred": relay.pump.deferred,
                "held": relay.pump.held,
                "problems": dict(relay.problems),
            }
            for relay in self.relays
        }


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """How far a drain has come."""

    waiting: int
    """Messages left in all queues: active, locked, scheduled, deferred."""
    forwarded: int
    dead_lettered: int
    problems: tuple[str, ...] = ()
    """What keeps messages where they are, in a person's words."""


@dataclass(frozen=True, slots=True)
class DrainStats:
    """What a drain did, as this process saw it; the ledger is what to count by."""

    forwarded: int
    completed: int
    dead_lettered: int
    seconds: float


async def drain(
    primary: object,
    secondary: object,
    queues: Sequence[str],
    *,
    ledger: Ledger | None = None,
    idle_s: float = IDLE_S,
    on_progress: Callable[[DrainProgress], None] | None = None,
    options: SendAvailabilityOptions | None = None,
    limits: Limits | None = None,
    pump_factory: PumpFactory | str | None = None,
) -> DrainStats:
    """Move everything out of these backlog queues; returns when each holds nothing more.

    What cannot be delivered yet keeps it running; cancel it to stop, nothing is lost by that.
    SyphonError if a queue is not there, or its counts must not be seen.
    """
    host = SyphonHost(
        primary,
        secondary,
        queues,
        options,
        ledger,
        limits=limits,
        pump_factory=pump_factory,
    )
    began = time.monotonic()
    await _total(host.secondary, host.relays)
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
        seconds=time.monotonic() - began,
    )


async def _until_empty(
    host: SyphonHost, idle_s: float, on_progress: Callable[[DrainProgress], None] | None
) -> None:
    while True:
        waiting = await _total(host.secondary, host.relays)
        if on_progress is not None and waiting is not None:
            on_progress(_progress(host, waiting))
        if waiting == 0 and host.in_flight == 0:
            return
        # A queue that has gone quiet is asked at once, a busy one from time to time.
        ends = time.monotonic() + idle_s
        moved = _moved(host)
        while time.monotonic() < ends:
            await asyncio.sleep(SETTLE_S)
            if host.in_flight == 0 and _moved(host) > moved:
                break


def _moved(host: SyphonHost) -> int:
    return sum(relay.pump.completed + relay.pump.dead_lettered for relay in host.relays)


def _progress(host: SyphonHost, waiting: int) -> DrainProgress:
    problems = [f"{side}: {why}" for relay in host.relays for side, why in relay.problems.items()]
    problems += [f"{path}: {why}" for relay in host.relays for path, why in relay.pump.held.items()]
    return DrainProgress(
        waiting=waiting,
        forwarded=sum(relay.pump.forwarded for relay in host.relays),
        dead_lettered=sum(relay.pump.dead_lettered for relay in host.relays),
        problems=tuple(dict.fromkeys(problems)),
    )


async def _total(secondary: Endpoint, relays: Sequence[Relay]) -> int | None:
    """What waits in all queues; None while nobody answers."""
    try:
        counts = await asyncio.gather(*(counts_of(secondary, relay.queue) for relay in relays))
    except CountsUnavailable as error:
        log.warning("counting what is left: %s", error)
        return None
    return sum(map(_waiting, counts))


def _waiting(counts: QueueCounts) -> int:
    return counts.waiting


def _factory(given: PumpFactory | str | None) -> PumpFactory:
    if given is None:
        return Pump
    if not isinstance(given, str):
        return given
    module, _, attribute = given.partition(":")
    try:
        found: PumpFactory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SyphonError(
            f"no pump is made by {given!r}: name one as module:attribute ({error})"
        ) from error
    return found


class _NoLedger:
    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        """Nothing: no ledger was asked for."""
