"""The programs of the simulated world: applications that send through a pair, and syphons.

Each can be killed at any time and started again; what it had in memory is gone then, except the
plan of what an application still wants to send.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import AzureError

from tests.simulation.machine import Process
from tests.simulation.messages import make_message
from tests.simulation.night.checks import require_cause, require_queue_fault
from tests.simulation.plan import Burst, EntityPlan
from tests.simulation.truth import CALL, Call, Original
from twinbus.errors import MissingRightError, PartialDivertError, TwinbusError
from twinbus.options import SendAvailabilityOptions
from twinbus.pair import Pair
from twinbus.pairing.observing.events import BacklogQueuePulled, EntityChanged, PairEvent
from twinbus.pairing.sending.client import PairedClient, Pinger
from twinbus.pairing.sending.entity_monitor import EntityMonitor
from twinbus.servicebus.names import backlog_paths
from twinbus.status.document import EntityState
from twinbus.syphon.core.intake import IntakeLimits
from twinbus.syphon.host import SyphonHost

if TYPE_CHECKING:
    from tests.simulation.world import World

BURSTS: Final = (1, 1, 1, 3)
LATE_S: Final = 1e-6
"""What a call may take beyond its timeout: nothing but the rounding of virtual time."""
PUMP_ANSWER_S: Final = 5.0
RESTART_S: Final = 1.0
"""Until a program that could not start is started again."""


class Program:
    """Something that runs as a process, again and again."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.starts = 0
        self.process: Process | None = None

    def start(self) -> None:
        """Start it, if it does not run."""
        if self.process is None:
            self.starts += 1
            self.process = Process(self.world.loop, self.name, self.starts)
            self.process.spawn(self.run())

    async def kill(self) -> None:
        """Kill -9, if it runs."""
        process, self.process = self.process, None
        if process is not None:
            self.world.timeline.note("killed", who=self.name)
            await process.kill()

    @property
    def is_busy(self) -> bool:
        """In the middle of something that a kill would cut short."""
        raise NotImplementedError

    async def run(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def end(self) -> None:
        """Close it in peace; nothing may be left of it."""
        process = self.process
        assert process is not None
        await process.spawn(self.close())
        left = [*process.live_tasks, *self.world.loop.timers_of(process)]
        if left:
            self.world.violation("left behind", f"{self.name} closed and left {left}")
        self.process = None


class Syphon(Program):
    """A syphon in a process of its own."""

    host: SyphonHost | None = None

    @property
    def is_busy(self) -> bool:
        return self.host is not None and self.host.in_flight > 0

    async def run(self) -> None:
        world = self.world
        primary, secondary = world.side("primary"), world.side("secondary")
        self.host = SyphonHost(
            primary,
            secondary,
            backlog_paths(primary.label, world.options.backlog_queue_count),
            world.options,
            world.ledger,
            limits=IntakeLimits(messages=world.plan.pump_messages, answer_s=PUMP_ANSWER_S),
            twins=world.plan.pumped_twins,
            environment=world.environment,
        )
        await self.host.start()

    async def close(self) -> None:
        assert self.host is not None
        await self.host.close()

    async def kill(self) -> None:
        await super().kill()
        self.host = None


class Application(Program):
    """A program that sends, from two places at once, through one pair."""

    def __init__(self, world: World, name: str, *, embeds_syphon: bool) -> None:
        super().__init__(world, name)
        self.pair: Pair | None = None
        self.is_ready = False
        """The pair has started."""
        self.embeds_syphon = embeds_syphon
        self._calling = 0
        self.sending: list[asyncio.Task[None]] = []
        """What sends, until it has sent everything."""
        is_strict = world.options.session_order == "strict"
        count = 1 if is_strict else 2
        entities = world.plan.entities
        self.places: list[EntityPlan] = [world.rng.choice(entities) for _ in range(count)]
        self.left = [world.plan.calls] * count
        self._bursts = (1,) if is_strict else BURSTS
        self._is_plain = is_strict

    @property
    def is_busy(self) -> bool:
        return self._calling > 0 or any(host.in_flight for host in self.hosts)

    @property
    def hosts(self) -> list[SyphonHost]:
        syphon = None if self.pair is None else self.pair._syphon
        return [] if syphon is None else syphon.group.hosts

    @property
    def client(self) -> PairedClient:
        assert self.pair is not None
        client = self.pair._client
        assert client is not None
        return client

    async def run(self) -> None:
        world = self.world
        options = world.options_of(enable_syphon=self.embeds_syphon)
        while not self.is_ready:
            self.pair = Pair(world.side("primary"), world.side("secondary"), options, world.parts)
            try:
                await self.pair.start()
            except MissingRightError:
                # The fault is that a queue refuses the sender. A supervisor starts it again.
                await self.pair.close()
                await asyncio.sleep(RESTART_S)
            else:
                self.pair.on_event(self._watch)
                self.is_ready = True
        assert self.process is not None
        numbers = range(len(self.places))
        self.sending = [self.process.spawn(self._send_from(number)) for number in numbers]
        for burst in world.plan.bursts:
            if burst.application == self.name and burst.at > world.loop.time():
                self.sending.append(self.process.spawn(self._send_burst(burst)))

    async def kill(self) -> None:
        self.is_ready = False
        await super().kill()
        self.pair = None

    async def close(self) -> None:
        assert self.pair is not None
        await self.pair.close()

    def _watch(self, event: PairEvent) -> None:
        if isinstance(event, EntityChanged) and event.after is EntityState.FAILED_OVER:
            require_cause(self.world, self, event)
        if isinstance(event, BacklogQueuePulled):
            require_queue_fault(self.world, self, event)

    async def _send_from(self, place: int) -> None:
        world, entity = self.world, self.places[place]
        sender = self._sender(entity)
        ends_s = world.plan.ends_s
        pause_s = 2 * ends_s / world.plan.calls
        where = f"{self.name}/{place}"
        while self.left[place] > 0:
            wait_s = world.rng.uniform(0.0, pause_s)
            if world.loop.time() + wait_s > ends_s:
                return
            await asyncio.sleep(wait_s)
            self.left[place] -= 1
            burst = world.rng.choice(self._bursts)
            calls = [self._send(sender, entity, where) for _ in range(burst)]
            # One at a time needs no task of its own.
            await (calls[0] if burst == 1 else asyncio.gather(*calls))

    async def _send_burst(self, burst: Burst) -> None:
        entity = self.places[0]
        sender = self._sender(entity)
        await asyncio.sleep(burst.at - self.world.loop.time())
        self.world.timeline.note("a burst of %d calls", burst.calls, who=self.name)
        where = f"{self.name}/burst"
        calls = (self._send_one(sender, entity, where, burst.lasts_s) for _ in range(burst.calls))
        await asyncio.gather(*calls)

    async def _send_one(self, sender: Any, entity: EntityPlan, where: str, within_s: float) -> None:
        """One of many: a plain message, which costs little."""
        if within_s:
            await asyncio.sleep(self.world.rng.uniform(0.0, within_s))
        original = self._original(entity, where, plain=True)
        call = self._begin(entity, [original], self.world.rng.choice(self.world.plan.timeouts_s))
        await self._run(call, sender, original.message)

    def _sender(self, entity: EntityPlan) -> Any:
        assert self.pair is not None
        kind = self.pair.get_topic_sender if entity.kind == "topic" else self.pair.get_queue_sender
        return kind(entity.path if self.world.rng.random() < 0.8 else entity.path.upper())

    async def send_once(self, entity: EntityPlan) -> Call:
        """One plain message, as a program that knows nothing of what went before would send it."""
        assert self.pair is not None
        sender = self.pair.get_queue_sender(entity.path)
        original = self._original(entity, "last", plain=True)
        call = self._begin(entity, [original], 15.0)
        await self._run(call, sender, original.message)
        await sender.close()
        return call

    async def _send(self, sender: Any, entity: EntityPlan, where: str) -> None:
        rng = self.world.rng
        form = rng.choice(("one", "one", "list", "batch"))
        count = 1 if form == "one" else rng.randint(1, 4)
        originals = [self._original(entity, where, plain=self._is_plain) for _ in range(count)]
        timeout_s = rng.choice(self.world.plan.timeouts_s)
        payload: Any = originals[0].message
        if form == "list":
            payload = [original.message for original in originals]
        elif form == "batch":
            payload, originals = await self._batch(sender, originals)
        call = self._begin(entity, originals, timeout_s)
        await self._run(call, sender, payload)
        if call.outcome == "raised" and rng.random() < 0.4:
            again = self._begin(entity, originals, timeout_s)
            await self._run(again, sender, payload)

    async def _batch(self, sender: Any, originals: list[Original]) -> tuple[Any, list[Original]]:
        try:
            batch = await sender.create_message_batch()
        except (AzureError, TwinbusError):
            return originals[0].message, originals[:1]
        added = []
        for original in originals:
            if original.message_id is None:
                continue
            try:
                batch.add_message(original.message)
            except ValueError:
                break
            added.append(original)
        return (batch, added) if added else (originals[0].message, originals[:1])

    def _original(self, entity: EntityPlan, where: str, *, plain: bool = False) -> Original:
        truth, loop = self.world.truth, self.world.loop
        serial = len(truth.originals) + 1
        number = truth.next_number(entity.path)
        original = make_message(
            self.world.rng, serial, number, entity, loop.time(), where, plain=plain
        )
        truth.originals[serial] = original
        return original

    def _begin(
        self, entity: EntityPlan, originals: list[Original], timeout_s: float | None
    ) -> Call:
        calls, now = self.world.truth.calls, self.world.loop.time()
        call = Call(len(calls) + 1, self.name, entity.path, originals, timeout_s, now)
        calls.append(call)
        return call

    async def _run(self, call: Call, sender: Any, payload: Any) -> None:
        world = self.world
        CALL.set(call)
        self._calling += 1
        try:
            await sender.send_messages(payload, timeout=call.timeout_s)
        except asyncio.CancelledError:
            call.outcome = "killed"
            raise
        except (AzureError, TwinbusError) as error:
            call.outcome, call.error = "raised", f"{type(error).__name__}: {error}"
            if not getattr(error, "message_ids", ()):
                world.violation("ids", f"call {call.number} raised without message_ids: {error!r}")
            if isinstance(error, PartialDivertError):
                by_id = {original.message_id: original.serial for original in call.originals}
                call.stored = {by_id[i] for i in error.stored_ids if i in by_id}
        except Exception as error:  # noqa: BLE001  # no other is an answer to a caller
            call.outcome, call.error = "raised", f"{type(error).__name__}: {error}"
            world.violation("unseen error", f"call {call.number} raised {error!r}")
        else:
            call.outcome = "returned"
            call.stored = {original.serial for original in call.originals}
        finally:
            call.ended = world.loop.time()
            CALL.set(None)
            self._calling -= 1
        serials = ", ".join(f"#{original.serial}" for original in call.originals)
        world.timeline.note(
            "call %d to %s with %s: %s %s after %.3f s", call.number, call.path, serials,
            call.outcome, call.error[:90], call.ended - call.began, who=self.name,
        )  # fmt: skip
        self._look_at(call)

    def _look_at(self, call: Call) -> None:
        world = self.world
        assert call.ended is not None
        if call.timeout_s is not None and call.ended > call.began + call.timeout_s + LATE_S:
            took_s = call.ended - call.began
            world.violation(
                "outlived", f"call {call.number} took {took_s:.6f} s of {call.timeout_s} s"
            )
        if call.outcome == "returned" and call.deeds and call.deeds[-1].kind == "send":
            require_healed(world, self.client.entity(call.path))


def require_healed(world: World, entity: EntityMonitor) -> None:
    """A success on the primary, however late, ends a failover that nobody holds (SPEC 3)."""
    failover = entity.failover
    if failover.state is not EntityState.HEALTHY and not failover.forced and not failover.frozen:
        world.violation(
            "late success", f"{entity.path} took a message and is {failover.state.value}"
        )


def client_class(world: World) -> type[PairedClient]:
    """The pair's client, with its pings and successes watched."""

    class WatchedPinger(Pinger):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._pinged: set[str] = set()

        async def ping(self, entity: EntityMonitor) -> None:
            path, state = entity.path, entity.failover.state
            if state not in (EntityState.FAILED_OVER, EntityState.UNUSABLE):
                world.violation("ping", f"{path} is pinged and is {state.value}")
            if path in self._pinged:
                world.violation("ping", f"{path} is pinged twice at once")
            self._pinged.add(path)
            try:
                await super().ping(entity)
            finally:
                self._pinged.discard(path)

    class WatchedClient(PairedClient):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._pinger = WatchedPinger(self.state, self._primary_sdk)

        def forwarded(self, path: str) -> None:
            super().forwarded(path)
            entity = self.state.monitors.find(path)
            # Above 1 only the pings end a failover.
            if entity is not None and self.state.options.healthy_pings == 1:
                require_healed(world, entity)

    return WatchedClient


def options_with(options: SendAvailabilityOptions, **changes: Any) -> SendAvailabilityOptions:
    """The same options but for some."""
    return replace(options, **changes)
