"""Whether a world has come to rest after its faults, and if not, what still moves or is stuck."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from twinbus.broker.refusals import EntityNotFound
from twinbus.pairing.core.backlog import LONGEST_PULL_S
from twinbus.status.document import EntityState
from twinbus.syphon.host import SyphonHost

if TYPE_CHECKING:
    from tests.simulation.programs import Application
    from tests.simulation.world import World


def what_is_left(world: World) -> Iterator[str]:
    """Everything that is not as it must be in a world without faults, in words."""
    pending = [call.number for call in world.truth.calls if call.outcome == "pending"]
    if pending:
        yield f"calls {pending} have not ended"
    for path in world.backlog_paths:
        try:
            queue = world.secondary.engine.get_queue(path)
        except EntityNotFound:
            yield f"{path} was never created"
            continue
        if queue.messages:
            yield (
                f"{path} holds {queue.active_count} active, {queue.locked_count} locked,"
                f" {queue.deferred_count} deferred messages"
            )
    for application in world.applications:
        yield from _left_of(application, world)
    for syphon in world.syphons:
        if syphon.host is None:
            yield f"{syphon.name} has not started"
        else:
            yield from _left_of_host(syphon.name, syphon.host, world)


def _left_of(application: Application, world: World) -> Iterator[str]:
    name = application.name
    if not application.is_ready or application.pair is None:
        yield f"{name} has not paired"
        return
    if not all(task.done() for task in application.sending):
        yield f"{name} still sends"
    client = application.client
    for entity in client.state.monitors.all():
        state = entity.failover.state
        is_gone = entity.path.lower() in world.faults.gone_for_good
        if state is not EntityState.HEALTHY and not (state is EntityState.UNUSABLE and is_gone):
            yield f"{name}: {entity.path} is {state.value} ({entity.failover!r})"
    discovery = application.pair._discovery
    assert discovery is not None
    # Also a queue that was missing or disabled at the start is found at last (SPEC 2.5).
    if discovery.searching is not None:
        yield f"{name} still looks for backlog queues: {discovery.searching}"
    # A pulled queue returns by time at the latest, after the longest rest (SPEC 3).
    at_last = client.state.rotation.available(world.loop.time() + LONGEST_PULL_S)
    missing = [path for path in world.backlog_paths if path not in at_last]
    if missing:
        yield f"{name}: {missing} will never be in the rotation again"
    scan = client.session_scan
    if scan is not None and len(scan.order):
        yield f"{name}: {len(scan.order)} sessions are bound to the backlog"
    for host in application.hosts:
        yield from _left_of_host(name, host, world)


def _left_of_host(name: str, host: SyphonHost, world: World) -> Iterator[str]:
    for relay in host.relays:
        if relay.queue in world.not_ours:
            continue
        if relay.pump.in_flight:
            yield f"{name}: {relay.queue}: {relay.pump.in_flight} messages are in flight"
        if relay.problems:
            yield f"{name}: {relay.queue}: {relay.problems}"
