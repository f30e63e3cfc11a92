"""A pump meets any events in any order: it never loses, and never completes too early.

The world of the unit tests, driven at random. At the end both namespaces are healthy, and then the
backlog must drain: what a pump forgets to ask for would be lost as surely as what it drops.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.unit.syphon.core.pump_world import World
from twinbus.syphon.core.pump import IntakeLimits

PATHS = st.sampled_from(["orders", "Invoices", "topics/a", ""])
CONDITIONS = st.sampled_from(
    [
        "amqp:not-found",
        "amqp:not-allowed",
        "amqp:link:message-size-exceeded",
        "amqp:resource-limit-exceeded",
        "com.microsoft:entity-disabled",
        "com.microsoft:server-busy",
        "amqp:unauthorized-access",
        "amqp:link:detach-forced",
        "something:new",
    ]
)
COUNTS = st.integers(1, 6)
SESSIONS = st.sampled_from([None, "a", "b"])


class PumpMachine(RuleBasedStateMachine):
    """Every event that a relay can tell, whenever it can happen."""

    strict = False
    home: str | None = None

    @initialize(
        messages=st.integers(4, 12),
        size_bytes=st.sampled_from([50, 400, 10_000_000]),
        grace_s=st.sampled_from([0.0, 30.0, 100_000.0]),
    )
    def begin(self, messages: int, size_bytes: int, grace_s: float) -> None:
        limits = IntakeLimits(messages=messages, size_bytes=size_bytes, answer_s=30.0)
        self.world = World(
            limits=limits, grace_s=grace_s, poll_s=900.0, strict=self.strict, home=self.home
        )

    @rule(path=PATHS, count=COUNTS, session=SESSIONS)
    def store(self, path: str, count: int, session: str | None) -> None:
        self.world.store(self.home or path, count, session)

    @rule(stored=st.booleans())
    def primary_changes(self, stored: bool) -> None:
        if self.world.is_primary_up:
            self.world.primary_down(stored=stored)
        else:
            self.world.primary_up()

    @rule(carried_out=st.booleans())
    def secondary_changes(self, carried_out: bool) -> None:
        if self.world.is_secondary_up:
            self.world.secondary_down(carried_out=carried_out)
        else:
            self.world.secondary_up()

    @precondition(lambda self: self.world.credit)
    @rule(count=COUNTS)
    def deliver(self, count: int) -> None:
        self.world.deliver(count)

    @precondition(lambda self: self.world.attaching)
    @rule(data=st.data())
    def attach(self, data: st.DataObject) -> None:
        self.world.attach(data.draw(st.sampled_from(self.world.attaching)))

    @precondition(lambda self: self.world.attached)
    @rule(data=st.data(), credit=st.integers(0, 5))
    def grant(self, data: st.DataObject, credit: int) -> None:
        self.world.grant(data.draw(st.sampled_from(sorted(self.world.attached))), credit)

    @precondition(lambda self: self.world.attaching or self.world.attached)
    @rule(data=st.data(), condition=st.one_of(st.none(), CONDITIONS), stored=st.booleans())
    def detach(self, data: st.DataObject, condition: str | None, stored: bool) -> None:
        paths = sorted({*self.world.attaching, *self.world.attached})
        self.world.detach(data.draw(st.sampled_from(paths)), condition, stored=stored)

    @precondition(lambda self: self.world.sent)
    @rule(count=COUNTS)
    def accept(self, count: int) -> None:
        self.world.accept(count)

    @precondition(lambda self: self.world.sent)
    @rule(condition=CONDITIONS)
    def refuse(self, condition: str) -> None:
        self.world.refuse(condition)

    @precondition(lambda self: self.world.settling)
    @rule(count=COUNTS, lock_lost=st.booleans())
    def confirm(self, count: int, lock_lost: bool) -> None:
        self.world.confirm(count, lock_lost=lock_lost)

    @precondition(lambda self: self.world.fetches)
    @rule()
    def answer_fetch(self) -> None:
        self.world.answer_fetch()

    @precondition(lambda self: self.world.looks)
    @rule()
    def answer_look(self) -> None:
        self.world.answer_look()

    @precondition(lambda self: self.world.looks_ahead)
    @rule(failed=st.booleans())
    def answer_look_ahead(self, failed: bool) -> None:
        self.world.answer_look_ahead(failed=failed)

    @precondition(lambda self: self.world.renewing)
    @rule()
    def renew(self) -> None:
        self.world.renew()

    @precondition(lambda self: self.world.queue)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        self.world.expire(data.draw(st.sampled_from(sorted(self.world.queue))))

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 5.0, 31.0, 61.0, 1_000.0]))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.settle_everything()
        arrived = set(self.world.in_primary)
        for stored in self.world.queue.values():
            assert stored.number in arrived or stored.state == "dead", stored
            assert stored.state != "dead" or stored.reason


TestPump = PumpMachine.TestCase
TestPump.settings = settings(stateful_step_count=50)


class TwinPumpMachine(PumpMachine):
    """The same for a twin: all messages go home, and consumers take some of them."""

    home = "orders"

    @precondition(lambda self: self.world.queue)
    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        self.world.remove(data.draw(st.sampled_from(sorted(self.world.queue))))

    @precondition(lambda self: self.world.queue)
    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        self.world.steal(data.draw(st.sampled_from(sorted(self.world.queue))))


TestTwinPump = TwinPumpMachine.TestCase
TestTwinPump.settings = settings(stateful_step_count=50)
