"""A pump meets any events in any order: it never loses, and never completes too early.

The world of the unit tests, driven at random. At the end both namespaces are healthy, and then the
backlog must drain: what a pump forgets to ask for would be lost as surely as what it drops.
"""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.unit.syphon.core.pump_world import World
from twinbus.pairing.core.session_order import (
    DOUBT_S,
    Diversion,
    QueueScan,
    SessionKey,
    SessionOrder,
)
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
        sent=st.sampled_from([1, 3, 100]),
        size_bytes=st.sampled_from([50, 400, 10_000_000]),
        grace_s=st.sampled_from([0.0, 30.0, 100_000.0]),
    )
    def begin(self, messages: int, sent: int, size_bytes: int, grace_s: float) -> None:
        limits = IntakeLimits(messages=messages, sent=sent, size_bytes=size_bytes, answer_s=30.0)
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


class StrictPumpMachine(PumpMachine):
    """Also kills, foreign locks and failed surveys; sessions must keep their order."""

    strict = True

    @rule(stored=st.booleans(), carried_out=st.booleans())
    def crash(self, stored: bool, carried_out: bool) -> None:
        self.world.crash(stored=stored, carried_out=carried_out)

    @precondition(lambda self: self.world.queue)
    @rule(data=st.data())
    def steal(self, data: st.DataObject) -> None:
        self.world.steal(data.draw(st.sampled_from(sorted(self.world.queue))))

    @precondition(lambda self: self.world.queue)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.world.remove(data.draw(st.sampled_from(sorted(self.world.queue))))

    @precondition(lambda self: self.world.surveys)
    @rule(failed=st.booleans())
    def answer_survey(self, failed: bool) -> None:
        self.world.answer_survey(failed=failed)

    @rule()
    def pause(self) -> None:
        self.world.perform(self.world.pump.pause(self.world.now))

    @rule()
    def resume(self) -> None:
        self.world.perform(self.world.pump.resume(self.world.now))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.perform(self.world.pump.resume(self.world.now))
        super().teardown()


TestStrictPump = StrictPumpMachine.TestCase
TestStrictPump.settings = settings(stateful_step_count=50)

QUEUE = "contoso/x-servicebus-transfer/0"
STRICT_SESSIONS = ("a", "b")
PAGE = 2


def key(session: str) -> SessionKey:
    return SessionKey.of("orders", session)


class StrictOrderMachine(StrictPumpMachine):
    """Both ends of strict session order at once: one sending process and one syphon.

    Timeouts leave copies: on the primary, in the backlog, at once or later. What is compared is the
    first arrival of every message whose send returned.
    """

    @initialize(messages=st.integers(4, 12))
    def begin(self, messages: int) -> None:
        self.world = World(limits=IntakeLimits(messages=messages), strict=True)
        self.order = SessionOrder((QUEUE,))
        self.order.finish_scan(self.order.begin_first_scan(QUEUE, 0.0))
        self.is_back = True
        self.names = itertools.count(1)
        self.by_number: dict[int, str] = {}
        """Messages by their number in the backlog; those sent straight to the primary below 0."""
        self.returned: dict[str, list[str]] = {session: [] for session in STRICT_SESSIONS}
        self.diverting: dict[str, str] = {}
        self.late: list[tuple[str, str]] = []
        """What a timed-out send still carries: where to, and the message."""
        self.look: QueueScan | None = None
        self.cursor = 0

    # What the world of the pump alone does otherwise

    def store(self, **_: object) -> None:
        """No rule here: only senders store."""

    def remove(self, **_: object) -> None:
        """No rule here: no other program drains the backlog."""

    # Sending

    @precondition(lambda self: len(self.diverting) < len(STRICT_SESSIONS))
    @rule(data=st.data(), answer=st.sampled_from(["ok", "ok", "ok", "stored", "late", "lost"]))
    def send(self, data: st.DataObject, answer: str) -> None:
        free = [session for session in STRICT_SESSIONS if session not in self.diverting]
        session = data.draw(st.sampled_from(free))
        name = f"{session}{next(self.names)}"
        if self.is_back and not self.order.is_bound(key(session)):
            if answer in ("ok", "stored"):
                self._on_primary(name)
            if answer == "ok":
                self.returned[session].append(name)
                return
            if answer == "late":
                self.late.append(("primary", name))
            self.is_back = False
        self.order.begin_divert(key(session))
        self.diverting[session] = name

    @precondition(lambda self: self.diverting)
    @rule(data=st.data(), how=st.sampled_from(["ok", "ok", "ok", "no", "stored", "late", "lost"]))
    def divert_ends(self, data: st.DataObject, how: str) -> None:
        session = data.draw(st.sampled_from(sorted(self.diverting)))
        name = self.diverting.pop(session)
        if how in ("ok", "stored"):
            self._in_backlog(name)
        if how == "late":
            self.late.append(("backlog", name))
        if how == "ok":
            self.returned[session].append(name)
        endings = {"ok": Diversion.STORED, "no": Diversion.REFUSED}
        self.order.end_divert(key(session), endings.get(how, Diversion.DOUBTFUL), self.world.now)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def late_arrival(self, data: st.DataObject) -> None:
        where, name = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        if where == "primary":
            self._on_primary(name)
        else:
            self._in_backlog(name)

    @rule()
    def entity_changes(self) -> None:
        self.is_back = not self.is_back

    # Looking

    @precondition(lambda self: self.look is None)
    @rule()
    def look_begins(self) -> None:
        self.look, self.cursor = QueueScan(QUEUE, self.world.now), 0

    @precondition(lambda self: self.look is not None)
    @rule()
    def look_goes_on(self) -> None:
        assert self.look is not None
        page = [stored for stored in self.world.left if stored.number > self.cursor][:PAGE]
        if page:
            self.order.add_page(self.look, [(stored.path, stored.session) for stored in page])
            self.cursor = page[-1].number
        else:
            self.order.finish_scan(self.look)
            self.look = None

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        super().teardown()
        self._check()
        # Nothing is left, so that a look or two frees every session.
        for session in list(self.diverting):
            self.order.end_divert(key(session), Diversion.REFUSED, self.world.now)
        self.order.finish_scan(QueueScan(QUEUE, self.world.now + DOUBT_S))
        assert len(self.order) == 0

    def _check(self) -> None:
        arrived = [self.by_number[number] for number in self.world.in_primary]
        first = {name: at for at, name in reversed(list(enumerate(arrived)))}
        for session in STRICT_SESSIONS:
            places = [first[name] for name in self.returned[session] if name in first]
            assert places == sorted(places), (session, arrived)

    def _on_primary(self, name: str) -> None:
        number = -1 - len(self.by_number)
        self.by_number[number] = name
        self.world.in_primary.append(number)

    def _in_backlog(self, name: str) -> None:
        (number,) = self.world.store("orders", 1, name[0])
        self.by_number[number] = name


TestStrictOrder = StrictOrderMachine.TestCase
TestStrictOrder.settings = settings(stateful_step_count=60)
