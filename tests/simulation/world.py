"""One simulated world from one seed: two namespaces, applications, syphons, and what befalls them.

    result = simulate(123)
    assert not result.violations, result.report()

Faults come and go until a certain time; then the world is left alone until nothing moves, and the
checkers look at what has become of every message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final
from uuid import UUID

from azure.core.exceptions import AzureError, HttpResponseError, ResourceNotFoundError

from tests.simulation.checks import check_all
from tests.simulation.faults import Faults, create_backlog, create_entity
from tests.simulation.line import SimLine
from tests.simulation.machine import Process, SimLoop
from tests.simulation.namespace import EPOCH_MS, SimNamespace
from tests.simulation.network import Network, Wire
from tests.simulation.night.checks import require_protection, watch_governor
from tests.simulation.night.plan import draw_world
from tests.simulation.plan import Plan
from tests.simulation.programs import Application, Program, Syphon, client_class, options_with
from tests.simulation.quiet import what_is_left
from tests.simulation.sdk import Encoder, SimAdministration, SimSide
from tests.simulation.timeline import Timeline
from tests.simulation.truth import CALL, Deed, Handover, Truth
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import LockedMessage, SettlementOutcome
from twinbus.client.administration import ANSWER_S, NotAnswered
from twinbus.client.connection import Environment
from twinbus.control.server import ControlServer
from twinbus.ledger.record import LineForm
from twinbus.options import SendAvailabilityOptions
from twinbus.pair import PairParts
from twinbus.pairing.core.backlog import WANTED
from twinbus.pairing.observing.recording import Recorder
from twinbus.servicebus.names import backlog_paths
from twinbus.servicebus.twins import is_twin_of

QUIET_LIMIT_S: Final = 900.0
"""After the faults. The longest honest wait is a lock of 60 s, a back-off of 60 s and a look for
deferred messages after each other; what moves after this is stuck."""

QUIET_STEP_S: Final = 2.0


@dataclass(frozen=True)
class Result:
    """What a simulation came to."""

    seed: int
    plan: Plan
    violations: list[str]
    timeline: Timeline
    facts: dict[str, int]

    def report(self) -> str:
        """Everything, for a person."""
        head = [f"seed {self.seed}", *self.plan.lines(), ""]
        tail = ["", ", ".join(f"{name} {count}" for name, count in self.facts.items())]
        tail += [f"VIOLATION {text}" for text in self.violations] or ["all checks passed"]
        return "\n".join([*head, str(self.timeline), *tail])


def simulate(
    seed: int,
    planted: Callable[[], AbstractContextManager[Any]] = nullcontext,
    kind: Callable[[int, SimLoop], World] | None = None,
) -> Result:
    """Run one world to its end. `planted` puts a bug in, for the mutation tests."""
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimLoop)
        world = (kind or World)(seed, loop)
        with world.logs(), planted():
            runner.run(world.run())
        facts = world.facts()
    return Result(seed, world.plan, world.violations, world.timeline, facts)


class _Ledger:
    """The ledger of all processes: each attempt is noted with the call that it belongs to."""

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        call = CALL.get()
        if call is not None and operation in ("send", "divert"):
            outcome, message_id = str(fields["outcome"]), str(fields["message_id"])
            call.attempts.append((operation, outcome, message_id))

    def record_message(self, form: LineForm, latency_us: int, message: Any) -> None:
        self.record_messages(form, latency_us, [message])

    def record_messages(self, form: LineForm, latency_us: int, messages: Any) -> None:
        for message_id, _ in messages:
            self.record(form.operation, **{**form.fields, "message_id": message_id})

    def flush(self) -> None:
        """Nothing to write."""

    def close(self) -> None:
        """Nothing to close."""


class _NoControl(ControlServer):
    """A control socket that nobody speaks to."""

    async def start(self) -> None:
        """Nothing to listen on."""

    async def close(self) -> None:
        """Nothing to close."""


def environment_of(world: World) -> Environment:
    """Return what the programs of this world have in place of a machine."""
    loop, rng = world.loop, world.rng

    async def lock_duration_s(endpoint: Any, path: str, requests: Any) -> float | None:
        try:
            found = await SimAdministration(world, endpoint.label).get_queue(path)
        except AzureError as error:
            requests.made(path, "get", str(error), is_known=isinstance(error, HttpResponseError))
            return None
        requests.made(path, "get")
        return float(found.lock_duration.total_seconds())

    async def is_marked(endpoint: Any, path: str, label: str, requests: Any) -> bool | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await SimAdministration(world, endpoint.label).get_metadata(path)
        except ResourceNotFoundError:
            return False
        except (AzureError, TimeoutError) as error:
            raise NotAnswered(str(error)) from error
        return is_twin_of(found, label)

    return Environment(
        monotonic=loop.time,
        since_boot=loop.time,
        wall_ns=lambda: EPOCH_MS * 1_000_000 + round(loop.time() * 1e9),
        chance=rng.random,
        choose=rng.choice,
        new_id=lambda: UUID(int=rng.getrandbits(128)),
        connect=partial(SimLine, world),  # type: ignore[arg-type]  # what relays use of one
        lock_duration_s=lock_duration_s,
        is_marked=is_marked,
        administer=lambda namespace: SimAdministration(world, namespace.label),
    )


class World:
    """All parts, and what was seen to be wrong with them."""

    def __init__(
        self, seed: int, loop: SimLoop, draw: Callable[[Random], Plan] = draw_world
    ) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.loop = loop
        self.plan = draw(rng)
        # No process shares anything with another: each is to prove itself alone.
        self.options = SendAvailabilityOptions(board=False, **self.plan.options)
        self.timeline = Timeline(loop.time)
        self.truth = Truth(loop.time)
        self.network = Network(rng)
        self.violations: list[str] = []
        self.ledger = _Ledger()
        self.encoded = Encoder()
        self.environment = environment_of(self)
        self.parts = PairParts(
            environment=self.environment,
            open_recorder=lambda *sides: Recorder(self.ledger, *sides[:2]),
            client=client_class(self),
            control=_NoControl,
            fleet=None,
        )
        per_s = self.plan.credits_per_s
        self.primary = SimNamespace(loop, "primary", self.truth.performed, per_s)
        self.secondary = SimNamespace(loop, "secondary", self.truth.performed, per_s)
        self.namespaces = {side.name: side for side in (self.primary, self.secondary)}
        self.backlog_paths = backlog_paths("primary", self.options.backlog_queue_count)
        self.handovers: dict[bytes, Handover] = {}
        """What each lock token of a backlog queue was given for."""
        self.lines: list[SimLine] = []
        self.not_ours: set[str] = set()
        """Queues of the secondary that have a name of ours and belong to others."""
        for entity in self.plan.entities:
            create_entity(self.primary, entity)
        if self.plan.lock_s is not None and not self.plan.backlog_is_late:
            self.create_backlog()
        self.applications = [
            Application(self, f"app-{n}", embeds_syphon=self.plan.embedded and n == 0)
            for n in range(self.plan.applications)
        ]
        self.syphons = [Syphon(self, f"syphon-{n}") for n in range(self.plan.syphons)]
        everyone: list[Program] = [*self.applications, *self.syphons]
        self.programs = {program.name: program for program in everyone}
        self.faults = Faults(self)
        self.rates: list[float] = []
        """In a clean night of throttling: the governor's rate, second by second."""

    async def run(self) -> None:
        """Everything, from the first start to the last check."""
        self.loop.set_exception_handler(self._on_exception)
        for program in self.programs.values():
            program.start()
        happenings = [self.faults.run(fault) for fault in self.plan.faults]
        await asyncio.gather(*happenings, require_protection(self), watch_governor(self))
        await asyncio.sleep(max(0.0, self.plan.ends_s - self.loop.time()))
        self.timeline.note("no more faults")
        await self.faults.end_all()
        await self._until_quiet()
        if not self.violations:
            await self._one_more_each()
        await asyncio.gather(*(program.end() for program in self.programs.values()))
        self.check()

    async def _until_quiet(self) -> None:
        ends = self.loop.time() + QUIET_LIMIT_S
        while True:
            self.faults.end_commands()
            left = next(self.what_is_left(), None)
            if left is None:
                self.timeline.note("nothing moves any more")
                return
            if self.loop.time() > ends:
                for text in self.what_is_left():
                    self.violation("stuck", text)
                return
            await asyncio.sleep(QUIET_STEP_S)

    def what_is_left(self) -> Iterator[str]:
        """Everything that still moves or is stuck, in words."""
        return what_is_left(self)

    def check(self) -> None:
        """Look at what has become of everything."""
        check_all(self)

    async def _one_more_each(self) -> None:
        """Every sender is back on the primary: one more message each goes straight there."""
        for application in self.applications:
            for entity in self.plan.entities:
                if entity.path in self.faults.gone_for_good:
                    continue
                assert application.process is not None
                call = await application.process.spawn(application.send_once(entity))
                deeds = [deed.kind for deed in call.deeds]
                if call.outcome != "returned" or deeds != ["send"]:
                    words = f"{call.outcome} {call.error} after {deeds}"
                    self.violation("not back", f"{application.name} to {entity.path}: {words}")

    # What the parts ask of their world

    @contextmanager
    def logs(self) -> Iterator[None]:
        """Write what the product logs in the block to the timeline."""
        log = logging.getLogger("twinbus")
        level, propagates = log.level, log.propagate
        log.addHandler(self.timeline)
        log.setLevel(logging.INFO)
        log.propagate = False
        try:
            yield
        finally:
            log.removeHandler(self.timeline)
            log.setLevel(level)
            log.propagate = propagates

    def side(self, name: str) -> SimSide:
        """A namespace as a pair is given it."""
        text = f"Endpoint=sb://{name}.servicebus.windows.net/;SharedAccessKeyName=k"
        side = SimSide.from_connection_string(f"{text};SharedAccessKey=v")
        side.world = self
        return side

    def create_backlog(self) -> None:
        """The administrator makes the backlog queues that are missing."""
        lock_s = self.plan.lock_s or WANTED.lock_duration_ms / 1000
        detects = self.plan.backlog_deduplicates
        create_backlog(self.secondary, self.backlog_paths, lock_s, deduplicates=detects)

    def options_of(self, **changes: Any) -> SendAvailabilityOptions:
        return options_with(self.options, **changes)

    def note_lock(self, queue: Queue, delivery: LockedMessage, wire: Wire) -> None:
        """A message of a backlog queue was given to a syphon."""
        message = delivery.message
        source = (queue.path, message.sequence_number, message.enqueued_at_ms)
        self.handovers[delivery.lock_token] = Handover(source, self.loop.time(), wire)

    def note_settled(self, token: bytes, outcome: SettlementOutcome) -> None:
        """The namespace has performed what a receiver wants to become of a message."""
        self.handovers[token].settled_at = self.loop.time()

    def forward_deed(self, process: Process, path: str, token: bytes, wire: Wire) -> Deed:
        """A syphon is about to send a message of a backlog queue."""
        who = f"{process.name}.{process.number}"
        handover, now = self.handovers[token], self.loop.time()
        deed = Deed("forward", who, path, handover=handover, wire=wire, began_at=now)
        self.truth.deeds.append(deed)
        return deed

    def detach_sources(self) -> None:
        """The service closes every receiver for idleness."""
        for line in self.lines:
            if line.wire.served and line.namespace.is_up:
                line.session.close_source()

    def violation(self, kind: str, text: str) -> None:
        """Something that must never be."""
        self.timeline.note("VIOLATION %s: %s", kind, text)
        self.violations.append(f"{kind}: {text}")

    def facts(self) -> dict[str, int]:
        """How much happened, to see that worlds are not empty."""
        kinds = [copy.deed.kind for copy in self.truth.copies]
        return {
            "messages": len(self.truth.originals),
            "calls": len(self.truth.calls),
            "raised": sum(call.outcome == "raised" for call in self.truth.calls),
            "killed": sum(call.outcome == "killed" for call in self.truth.calls),
            **{kind: kinds.count(kind) for kind in ("send", "divert", "forward")},
            "seconds": round(self.loop.time()),
            "throttled": sum(
                side.credits.throttled for side in self.namespaces.values() if side.credits
            ),
        }

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.violation("unseen error", f"{context.get('message')} {error!r}")
