"""Where the product is tied to the simulation: the few names that stand for the outside world.

Everything behind them is the product's own code: pairs, senders, calls, pools, discovery, hosts,
relays, pumps, the engine.
"""

from __future__ import annotations

import importlib.util
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import UUID

from azure.core.exceptions import AzureError, HttpResponseError

import twinbus.pair
import twinbus.pairing.lifecycle.administration
import twinbus.pairing.sdk.outgoing
import twinbus.pairing.sending.pinger
import twinbus.syphon.host
import twinbus.syphon.relay.outbound
import twinbus.syphon.relay.relay
import twinbus.syphon.relay.request_tasks
from tests.simulation.line import sim_line
from tests.simulation.namespace import EPOCH_MS
from tests.simulation.sdk import SimAdministration
from twinbus.pairing.lifecycle.discovery import Discovery
from twinbus.pairing.sending.recording import Recorder

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["tied_to"]


class _Time:
    """What the module `time` is to the syphon."""

    def __init__(self, world: World) -> None:
        self._loop = world.loop

    def monotonic(self) -> float:
        return self._loop.time()

    def time(self) -> float:
        return EPOCH_MS / 1000 + self._loop.time()

    def time_ns(self) -> int:
        return EPOCH_MS * 1_000_000 + round(self._loop.time() * 1e9)


class _NoControl:
    """A control socket that nobody speaks to."""

    def __init__(self, *_: object) -> None:
        """Nothing is opened."""

    async def start(self) -> None:
        """Nothing to listen on."""

    async def close(self) -> None:
        """Nothing to close."""


@contextmanager
def tied_to(world: World) -> Iterator[None]:
    """Have the product live in this world for the length of the block."""
    time, rng = _Time(world), world.rng

    def new_id() -> UUID:
        return UUID(int=rng.getrandbits(128))

    def recorder(primary: Any, secondary: Any, _: object) -> Recorder:
        return Recorder(world.ledger, primary, secondary)

    def administration(namespace: Any) -> Any:
        return SimAdministration(world, namespace.label)

    async def described_lock_s(endpoint: Any, path: str, requests: Any) -> float | None:
        try:
            found = await SimAdministration(world, endpoint.label).get_queue(path)
        except AzureError as error:
            requests.made(path, "get", str(error), is_known=isinstance(error, HttpResponseError))
            return None
        requests.made(path, "get")
        return float(found.lock_duration.total_seconds())

    names: list[tuple[Any, str, Any]] = [
        (twinbus.pair, "PairedClient", world.client_class),
        (twinbus.pair, "open_recorder", recorder),
        (twinbus.pair, "Discovery", partial(Discovery, chance=rng.random)),
        (twinbus.pair, "ControlServer", _NoControl),
        (twinbus.pairing.lifecycle.administration, "administration_client", administration),
        (twinbus.pairing.sending.pinger, "uuid4", new_id),
        (twinbus.pairing.sdk.outgoing, "uuid4", new_id),
        (twinbus.syphon.relay.relay, "NamespaceConnection", sim_line(world)),
        (twinbus.syphon.relay.relay, "time", time),
        (twinbus.syphon.relay.relay, "random", rng),
        (twinbus.syphon.host, "random", rng),
        (twinbus.syphon.host, "time", time),
        (twinbus.syphon.relay.request_tasks, "time", time),
        (twinbus.syphon.relay.outbound, "time", time),
    ]
    if importlib.util.find_spec("twinbus.syphon.relay.lease") is not None:
        lease = importlib.import_module("twinbus.syphon.relay.lease")
        names += [(lease, "NamespaceConnection", sim_line(world)), (lease, "time", time)]
        names.append((lease, "random", rng))
        names.append((lease, "described_lock_s", described_lock_s))
    patches = [patch.object(*name) for name in names]
    log = logging.getLogger("twinbus")
    level, propagates = log.level, log.propagate
    chance = random.getstate()
    # The product's jitter is drawn from the module's own generator.
    random.seed(world.seed)
    for each in patches:
        each.start()
    log.addHandler(world.timeline)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        random.setstate(chance)
        log.removeHandler(world.timeline)
        log.setLevel(level)
        log.propagate = propagates
        for each in patches:
            each.stop()
