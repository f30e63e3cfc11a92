"""Both ends of strict session order at once: each session arrives as it was sent, whatever happens.

Senders that await one send after the other, with the core that binds and frees sessions; the strict
pump in its world of lost links, refusals and crashes; looks that take their time. Timeouts leave
copies: on the primary, in the backlog, at once or later. What is compared is the first arrival of
every message whose send returned.
"""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.property.test_strict_pump import StrictPumpMachine
from tests.unit.syphon.core.pump_world import World
from twinbus.pairing.core.session_order import (
    DOUBT_S,
    Diversion,
    QueueScan,
    SessionKey,
    SessionOrder,
)
from twinbus.syphon.core.pump import IntakeLimits

QUEUE = "contoso/x-servicebus-transfer/0"
SESSIONS = ("a", "b")
PAGE = 2


def key(session: str) -> SessionKey:
    return SessionKey.of("orders", session)


class StrictOrderMachine(StrictPumpMachine):
    """One sending process and one syphon, as the promise has it."""

    @initialize(messages=st.integers(4, 12))
    def begin(self, messages: int) -> None:
        self.world = World(limits=IntakeLimits(messages=messages), strict=True)
        self.order = SessionOrder((QUEUE,))
        self.order.finish_scan(self.order.begin_first_scan(QUEUE, 0.0))
        self.is_back = True
        self.names = itertools.count(1)
        self.by_number: dict[int, str] = {}
        """Messages by their number in the backlog; those sent straight to the primary below 0."""
        self.returned: dict[str, list[str]] = {session: [] for session in SESSIONS}
        self.diverting: dict[str, str] = {}
        self.late: list[tuple[str, str]] = []
        """What a timed-out send still carries: where to, and the message."""
        self.look: QueueScan | None = None
        self.cursor = 0

    # What the world of the pump alone does otherwise

    def store(self, **_: object) -> None:
        """No rule here: only senders store."""

    def remove(self, **_: object) -> None:
        """No rule here: nobody else drains the backlog."""

    # Sending

    @precondition(lambda self: len(self.diverting) < len(SESSIONS))
    @rule(data=st.data(), answer=st.sampled_from(["ok", "ok", "ok", "stored", "late", "lost"]))
    def send(self, data: st.DataObject, answer: str) -> None:
        free = [session for session in SESSIONS if session not in self.diverting]
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
        for session in SESSIONS:
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
