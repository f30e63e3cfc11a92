"""One process of a simulated fleet: the shipped shells and cores over simulated places."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.simulation.fleet.places import SimHost, SimHostFiles
from tests.simulation.fleet.plan import ENTITY
from tests.simulation.machine import Process
from twinbus.client.connection import Environment
from twinbus.errors import PairingError
from twinbus.fleet.core.notices import Notice
from twinbus.fleet.parts import HostEvidence
from twinbus.ledger import NullLedger
from twinbus.namespace.namespace import Namespace
from twinbus.pair_fleet import PairFleet
from twinbus.pairing.core.attempts import DivertTo
from twinbus.pairing.core.backlog import KeptChoice
from twinbus.pairing.core.failover import Transition
from twinbus.pairing.observing.recording import Recorder
from twinbus.pairing.sending.calls import CallResult, PairedCall, SendTarget
from twinbus.pairing.sending.client import Pinger
from twinbus.pairing.sending.entity_monitor import EntityMonitor
from twinbus.pairing.sending.shared_state import SharedState

if TYPE_CHECKING:
    from tests.simulation.fleet.world import FleetWorld

BACKLOG = "primary/x-servicebus-transfer/0"


class FleetSide(Namespace):
    """A namespace to which no client of the SDK is made."""

    def bounded_client(self, attempt_timeout_s: float) -> Any:
        return None


def side(name: str) -> FleetSide:
    text = f"Endpoint=sb://{name}.servicebus.windows.net/;SharedAccessKeyName=k"
    return FleetSide.from_connection_string(f"{text};SharedAccessKey=v")


class SimSender:
    """A sender of the SDK to the primary."""

    def __init__(self, process: FleetProcess) -> None:
        self.process = process

    async def send_messages(self, message: object) -> None:
        await self.process.world.primary_takes(self.process, message)


class SimPool:
    """The senders of one entity, in the place of `SenderPool`."""

    closed = False
    limit_bytes = None

    def __init__(self, make: Callable[[], SimSender], *_: object) -> None:
        self._sender = make()

    def take(self) -> SimSender:
        return self._sender

    async def attempt(
        self,
        pooled: SimSender,
        call: Callable[[Any], Awaitable[Any]],
        timeout_s: float,
        *,
        is_late: bool = False,
    ) -> None:
        async with asyncio.timeout(timeout_s):
            await call(pooled)

    async def close(self, seconds: float) -> None:
        return


class FleetCall(PairedCall):
    """One message of the application."""

    tries_for_others = True

    def __init__(self, process: FleetProcess, serial: int) -> None:
        target = process.target
        super().__init__(target, target.entity.failover, target.backlog, None)
        self.serial = serial
        self.process = process

    def on_primary(self, sdk: SimSender) -> Awaitable[Any]:
        return sdk.send_messages(self.serial)

    def succeeded(self, began: float) -> None:
        self.entity.succeeded(1)

    def record(self, began: float, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            self.process.world.truth.failed(self.process)

    async def divert(self, step: DivertTo) -> CallResult:
        await asyncio.sleep(0.01)
        self.process.world.truth.stored.add(self.serial)
        return True, None

    def ids(self) -> tuple[str, ...]:
        return (str(self.serial),)

    def unavailable(self) -> PairingError:
        return PairingError("no backlog queue")


class SimPairFleet(PairFleet):
    """The fleet of a pair, with simulated files."""

    def __init__(self, process: FleetProcess) -> None:
        super().__init__(SimpleNamespace(state=process.state))  # type: ignore[arg-type]
        self._process = process

    async def _open_host(self) -> HostEvidence:
        return SimHostFiles(self._process.host, self._process)


class FleetProcess:
    """A program with a pair that sends to one entity, now and then."""

    def __init__(self, world: FleetWorld, host: SimHost, name: str, send_every_s: float) -> None:
        self.world, self.host, self.name = world, host, name
        self.send_every_s = send_every_s
        self.fails_next = False
        """The next attempt on the primary fails, whatever the primary does."""
        self.fails_until = 0.0
        """So do all until this time."""
        self.machine = Process(world.loop, name, 1)
        self.calls: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def is_alive(self) -> bool:
        return self.machine.alive

    def start(self) -> None:
        self.machine.spawn(self._run())

    def _environment(self) -> Environment:
        world, loop = self.world, self.world.loop
        return Environment(
            monotonic=loop.time,
            since_boot=loop.time,
            wall_ns=lambda: int((self.host.clock_s + loop.time()) * 1e9),
            chance=world.rng.random,
            choose=world.rng.choice,
            new_id=lambda: UUID(int=world.rng.getrandbits(128)),
            connect=self,  # type: ignore[arg-type]  # the simulated places find the process by it
        )

    async def _run(self) -> None:
        world, loop, rng = self.world, self.world.loop, self.world.rng
        sides = world.sides
        recorder = Recorder(NullLedger(), *sides, is_on=False)
        self.state = SharedState(*sides, world.options, recorder, self._environment())
        self.state.rotation.add(BACKLOG)
        pinger = Pinger(self.state, self)  # type: ignore[arg-type]  # it makes the senders
        self.entity = EntityMonitor(ENTITY, world.options, ping=pinger.ping, changed=self._changed)
        self.state.monitors.add(self.entity)
        pool: Any = SimPool(partial(SimSender, self))
        choice = KeptChoice(self.state.rotation, rng.choice)
        self.target = SendTarget(self.state, self.entity, pool, choice)
        self.fleet = SimPairFleet(self)
        self.fleet.start()
        await asyncio.sleep(self.send_every_s * rng.random())
        while True:
            began = loop.time()
            await self.send()
            await asyncio.sleep(
                max(0.0, began + self.send_every_s * rng.uniform(0.7, 1.3) - loop.time())
            )

    def get_queue_sender(self, path: str, **_: object) -> SimSender:
        """Make a sender, as a client of the SDK does."""
        return SimSender(self)

    def send_soon(self) -> None:
        """Make a call beside those that the program makes by itself."""
        self.machine.spawn(self.send())

    async def send(self) -> None:
        truth = self.world.truth
        serial = truth.next_serial()
        try:
            await FleetCall(self, serial).run()
        except Exception as error:  # noqa: BLE001  # any error reaches the caller
            truth.raised.append(f"#{serial} of {self.name}: {error!r}")
        else:
            truth.returned.add(serial)

    def _changed(self, entity: EntityMonitor, transition: Transition) -> None:
        self.world.truth.changed(self, entity, transition)
        self.fleet.changed(entity.path)
        self.state.wake_diverting_calls()

    def says(self, notices: Sequence[Notice]) -> None:
        """The process tells others something: on the board, or in its file."""
        self.world.truth.said(self, notices)

    @property
    def pinger(self) -> str:
        """Who pings the entity, as this process says."""
        return self.fleet.pinger_of(ENTITY)

    async def kill(self) -> None:
        """End it as kill -9 does."""
        self.world.leases.killed(self)
        self.world.truth.ended(self)
        self.host.files.pop(self, None)
        with suppress(asyncio.CancelledError):
            await self.machine.kill()
