"""What goes wrong, done to the world and undone again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.simulation.namespace import Throttle
from tests.simulation.plan import EntityPlan, Fault
from twinbus.broker.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.refusals import (
    EntityAlreadyExists,
    EntityNotFound,
    QuotaExceeded,
    Refusal,
    ServerBusy,
    Unauthorized,
)
from twinbus.errors import PairingError
from twinbus.pairing.core.backlog import WANTED

if TYPE_CHECKING:
    from tests.simulation.namespace import SimNamespace
    from tests.simulation.programs import Program
    from tests.simulation.world import World

BUSY_STEP_S: Final = 0.007
BUSY_LIMIT_S: Final = 5.0

_REFUSALS: Final[dict[str, Callable[[str], Refusal]]] = {
    "internal": Refusal,
    "busy": ServerBusy,
    "quota": QuotaExceeded,
    "unauthorized": Unauthorized,
}


def create_entity(namespace: SimNamespace, entity: EntityPlan, metadata: str | None = None) -> None:
    """Create an entity as planned; it keeps what expires, for the checkers."""
    engine, now_ms = namespace.engine, namespace.now_ms()
    lock_ms = round(entity.lock_s * 1000)
    if entity.kind == "topic":
        topic = TopicDescription(
            requires_duplicate_detection=entity.deduplicates, user_metadata=metadata
        )
        engine.create_topic(entity.path, topic, now_ms)
        subscription = SubscriptionDescription(
            dead_letter_on_expiration=True, lock_duration_ms=lock_ms
        )
        engine.create_subscription(entity.path, "all", subscription, now_ms)
    else:
        queue = QueueDescription(
            requires_session=entity.sessions,
            requires_duplicate_detection=entity.deduplicates,
            dead_letter_on_expiration=True,
            lock_duration_ms=lock_ms,
            user_metadata=metadata,
        )
        engine.create_queue(entity.path, queue, now_ms)


def create_backlog(
    namespace: SimNamespace, paths: Iterable[str], lock_s: float, *, deduplicates: bool = False
) -> None:
    """Create missing backlog queues as an administrator might, with a lock of another length."""
    description = QueueDescription(
        lock_duration_ms=round(lock_s * 1000),
        max_size_mb=WANTED.max_size_mb,
        max_delivery_count=WANTED.max_delivery_count,
        dead_letter_on_expiration=WANTED.dead_letter_on_expiration,
        requires_duplicate_detection=deduplicates,
    )
    for path in paths:
        with suppress(EntityAlreadyExists):
            namespace.engine.create_queue(path, description, namespace.now_ms())


class Faults:
    """The faults of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._disabled: dict[tuple[str, str], None] = {}
        self.missing: dict[str, EntityPlan] = {}
        """Entities that are deleted now."""
        self.gone_for_good: set[str] = set()
        self.has_deleted_queues = False
        """A pair makes those again that it diverts to, the administrator the rest at the end."""
        self.throttles: dict[str, Throttle] = {}
        """By side: the last throttle that was set."""

    async def run(self, fault: Fault) -> None:
        """Have one fault come, last and go."""
        await asyncio.sleep(fault.at - self._world.loop.time())
        self._world.timeline.note("FAULT %s", fault)
        undo = await self._begin(fault)
        await asyncio.sleep(fault.lasts_s)
        if undo is not None:
            self._world.timeline.note("over: %s %s %s", fault.kind, fault.target, fault.detail)
            undo()

    async def end_all(self) -> None:
        """Nothing is wrong with the world any more."""
        world = self._world
        world.network.calm()
        for namespace in world.namespaces.values():
            namespace.refusals.clear()
            namespace.throttle = None
            namespace.go_on()
            namespace.restart()
        for side, path in list(self._disabled):
            self._enable(world.namespaces[side], path)
        for entity in list(self.missing.values()):
            self._recreate(entity)
        if world.plan.lock_s is not None or self.has_deleted_queues:
            world.create_backlog()
        for program in world.programs.values():
            program.start()

    def end_commands(self) -> None:
        """People let go of the entities; an answered ping or a success is what they wait for."""
        for application in self._world.applications:
            if application.is_ready:
                for entity in application.client.state.monitors.all():
                    assert application.pair is not None
                    if entity.failover.frozen:
                        application.pair.unfreeze(entity.path)
                    if entity.failover.forced:
                        application.pair.mark_healthy(entity.path)

    async def _begin(self, fault: Fault) -> Callable[[], None] | None:
        """Do it; what undoes it."""
        world = self._world
        match fault.kind:
            case "crash process":
                program: Program = world.programs[fault.target]
                if fault.detail == "busy":
                    await self._until_busy(program, fault)
                await program.kill()
                return program.start
            case "crash namespace":
                namespace = world.namespaces[fault.target]
                namespace.crash(dark=fault.detail == "dark")
                return namespace.restart
            case "stop namespace":
                namespace = world.namespaces[fault.target]
                namespace.stop()
                return namespace.go_on
            case "partition" | "slow" | "flaky":
                return self._weather(fault)
            case "refuse":
                return self._refuse(fault)
            case "disable":
                return self._disable(fault)
            case "delete":
                return self._delete(fault)
            case "delete queue":
                return self._delete_queue(fault)
            case "late queues":
                return self._make_queues
            case "throttle":
                return self._throttle(fault)
            case "detach idle":
                world.detach_sources()
                return None
        return self._command(fault)

    async def _until_busy(self, program: Program, fault: Fault) -> None:
        """Wait for the worst moment, in which it is in the middle of something."""
        ends = min(fault.at + BUSY_LIMIT_S, self._world.plan.ends_s - fault.lasts_s)
        while not program.is_busy and self._world.loop.time() < ends:  # noqa: ASYNC110
            await asyncio.sleep(BUSY_STEP_S)

    def _weather(self, fault: Fault) -> Callable[[], None]:
        world = self._world
        names = list(world.programs) if fault.target == "*" else [fault.target]
        paths = [world.network.weather(name, fault.detail) for name in names]
        for path in paths:
            if fault.kind == "slow":
                path.slow_s = fault.amount
            elif fault.kind == "flaky":
                path.flaky = fault.amount
            else:
                path.blocked_until = max(path.blocked_until, fault.at + fault.lasts_s)

        def undo() -> None:
            for path in paths:
                if fault.kind == "slow":
                    path.slow_s = 0.0
                elif fault.kind == "flaky":
                    path.flaky = 0.0

        return undo

    def _refuse(self, fault: Fault) -> Callable[[], None]:
        namespace, path = self._place(fault.target)
        namespace.refusals[path.lower()] = _REFUSALS[fault.detail]
        return lambda: namespace.refusals.pop(path.lower(), None) and None

    def _disable(self, fault: Fault) -> Callable[[], None] | None:
        namespace, path = self._place(fault.target)
        if not namespace.serves or not self._set_status(namespace, path, "Disabled"):
            return None
        self._disabled[namespace.name, path] = None
        return lambda: self._enable(namespace, path)

    def _enable(self, namespace: SimNamespace, path: str) -> None:
        if namespace.serves:
            self._disabled.pop((namespace.name, path), None)
            self._set_status(namespace, path, "Active")

    def _set_status(self, namespace: SimNamespace, path: str, status: str) -> bool:
        engine, now_ms = namespace.engine, namespace.now_ms()
        try:
            entity = engine.resolve(path)
        except EntityNotFound:
            return False
        engine.update(path, replace(entity.description, status=status), now_ms)
        namespace.settle()
        return True

    def _delete(self, fault: Fault) -> Callable[[], None] | None:
        world = self._world
        primary = world.primary
        if not primary.serves or fault.target in self.missing:
            return None
        world.truth.deletes(primary, fault.target)
        try:
            primary.engine.delete(fault.target, primary.now_ms())
        except EntityNotFound:
            return None
        primary.settle()
        entity = next(e for e in world.plan.entities if e.path == fault.target)
        if fault.detail == "for good":
            self.gone_for_good.add(fault.target)
            return None
        self.missing[fault.target] = entity
        return lambda: self._recreate(entity)

    def _recreate(self, entity: EntityPlan) -> None:
        primary = self._world.primary
        if primary.serves and entity.path in self.missing:
            del self.missing[entity.path]
            if entity.path not in self.gone_for_good:
                create_entity(primary, entity)

    def _delete_queue(self, fault: Fault) -> Callable[[], None] | None:
        """Delete a backlog queue with everything in it; its administrator makes it again."""
        secondary, path = self._place(fault.target)
        if not secondary.serves:
            return None
        self._world.truth.deletes(secondary, path)
        try:
            secondary.engine.delete(path, secondary.now_ms())
        except EntityNotFound:
            return None
        secondary.settle()
        self.has_deleted_queues = True
        return self._make_queues

    def _make_queues(self) -> None:
        # Without an administrator the pairs make them.
        if self._world.secondary.serves and self._world.plan.lock_s is not None:
            self._world.create_backlog()

    def _throttle(self, fault: Fault) -> Callable[[], None]:
        namespace = self._world.namespaces[fault.target]
        throttle = namespace.throttle = Throttle(fault.amount)
        self.throttles[fault.target] = throttle

        def undo() -> None:
            refused = sum(not is_taken for _, _, is_taken in throttle.answers)
            note = "%s answered server-busy to %d of %d requests"
            self._world.timeline.note(note, fault.target, refused, len(throttle.answers))
            namespace.throttle = None

        return undo

    def _command(self, fault: Fault) -> Callable[[], None] | None:
        command, _, path = fault.detail.partition(" ")
        application = next(a for a in self._world.applications if a.name == fault.target)
        if not application.is_ready:
            return None
        pair = application.pair
        try:
            getattr(pair, command)(path)
        except (PairingError, ValueError):
            return None

        def undo() -> None:
            if application.pair is pair and pair is not None and application.is_ready:
                if command == "freeze":
                    pair.unfreeze(path)
                elif command == "force_failover":
                    pair.mark_healthy(path)

        return undo

    def _place(self, target: str) -> tuple[SimNamespace, str]:
        """The namespace and path that a target's words mean."""
        world = self._world
        if target.startswith("all of "):
            return world.namespaces[target.removeprefix("all of ")], "*"
        if target.startswith("backlog "):
            return world.secondary, world.backlog_paths[int(target.removeprefix("backlog "))]
        return world.primary, target
