"""Random transactions against a model: committed ones are whole, the others left nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.broker.fakes import World, incoming
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.engine.settlement import RequestedSettlement, SettlementOutcome
from twinbus.broker.engine.transaction import BrokerTransaction
from twinbus.broker.refusals import Refusal, TransactionRolledBack

LOCK_MS = 5_000
OPEN = 3
OUTCOMES = list(SettlementOutcome)
ME = object()

Step = tuple[str, int, int, SettlementOutcome, bool]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["send", "settle", "settle", "commit", "roll back", "receive", "plain", "wait"]
        ),
        st.integers(0, OPEN - 1),
        st.integers(0, 20),
        st.sampled_from(OUTCOMES),
        st.booleans(),
    ),
    max_size=60,
)


@dataclass
class Known:
    """One message, as the model has it."""

    name: str
    place: str = "queue"
    count: int = 0
    token: bytes | None = None
    until_ms: int = 0

    def end(self, outcome: SettlementOutcome) -> None:
        self.token = None
        match outcome:
            case SettlementOutcome.COMPLETE:
                self.place = "gone"
            case SettlementOutcome.DEAD_LETTER:
                self.place = "dead"
            case SettlementOutcome.DEFER:
                self.place = "deferred"
                self.count += 1
            case SettlementOutcome.ABANDON:
                self.count += 1


@dataclass
class Planned:
    """A transaction, as the model has it."""

    work: BrokerTransaction
    sends: list[str] = field(default_factory=list)
    settles: dict[bytes, tuple[Known, SettlementOutcome, bool]] = field(default_factory=dict)


class Both:
    """The engine and the model, which do the same."""

    def __init__(self) -> None:
        self.world = World()
        self.queue = self.world.queue(
            "q", QueueDescription(lock_duration_ms=LOCK_MS, max_delivery_count=2_000)
        )
        self.now_ms = 1
        self.known: list[Known] = []
        self.open: list[Planned] = [self.new() for _ in range(OPEN)]
        self.names = iter(range(10_000))
        for _ in range(3):
            self.sent(self.name())

    def new(self) -> Planned:
        return Planned(BrokerTransaction(self.world.namespace))

    def name(self) -> str:
        return f"m{next(self.names)}"

    def sent(self, name: str) -> None:
        self.queue.enqueue(incoming(message_id=name), self.now_ms)
        self.known.append(Known(name))

    def step(self, step: Step) -> None:
        kind, index, which, outcome, is_final = step
        planned = self.open[index]
        held = [one for one in self.known if one.token is not None]
        match kind:
            case "send":
                planned.sends.append(self.name())
                batch = [incoming(message_id=planned.sends[-1])]
                planned.work.send(self.queue, batch, self.now_ms)
            case "settle" if held:
                self.settle(planned, held[which % len(held)], outcome, is_final=is_final)
            case "commit":
                self.commit(planned)
                self.open[index] = self.new()
            case "roll back":
                self.undo(planned)
                self.open[index] = self.new()
            case "receive":
                for delivery in self.queue.acquire(ME, 1 + which % 3, self.now_ms):
                    one = self.named(delivery.message.message_id)
                    one.token, one.until_ms = delivery.lock_token, delivery.locked_until_ms
            case "plain" if held:
                one = held[which % len(held)]
                assert one.token is not None
                self.queue.settle(one.token, outcome, self.now_ms)
                one.end(outcome)
            case "wait":
                self.now_ms += which * 300
                self.queue.run_timers(self.now_ms)
                for one in held:
                    if one.until_ms <= self.now_ms:
                        one.end(SettlementOutcome.ABANDON)

    def named(self, name: str | None) -> Known:
        return next(one for one in self.known if one.name == name)

    def settle(
        self, planned: Planned, one: Known, outcome: SettlementOutcome, *, is_final: bool
    ) -> None:
        assert one.token is not None
        wanted = RequestedSettlement(one.token, outcome)
        before = planned.settles.get(one.token)
        try:
            planned.work.settle(self.queue, wanted, self.now_ms, is_final=is_final)
        except Refusal:
            assert before is not None
            assert before[1] is not outcome
            return
        was_final = before is not None and before[2]
        planned.settles[one.token] = one, outcome, is_final or was_final

    def commit(self, planned: Planned) -> None:
        is_whole = all(one.token == token for token, (one, _, _) in planned.settles.items())
        try:
            planned.work.commit(self.now_ms)
        except TransactionRolledBack:
            assert not is_whole
            self.undo(planned)
            return
        assert is_whole
        for one, outcome, _ in planned.settles.values():
            one.end(outcome)
        self.known += [Known(name) for name in planned.sends]

    def undo(self, planned: Planned) -> None:
        planned.work.roll_back(self.now_ms)
        for token, (one, _, is_final) in planned.settles.items():
            if is_final and one.token == token:
                one.end(SettlementOutcome.ABANDON)

    def check(self) -> None:
        """Compare what is in memory, and what a restart finds, with the model."""
        left = [one for one in self.known if one.place != "gone"]
        # How often a deferred message was delivered is the concern of other tests.
        wanted = sorted((m.name, m.place, m.count if m.place != "deferred" else 0) for m in left)
        for world in (self.world, self.world.restarted(self.now_ms)):
            queue = world.namespace.get_queue("q")
            assert queue.dead_letter is not None
            states = {0: "queue", 1: "deferred"}
            found = [
                (m.message_id or "", states[m.state], 0 if m.state else m.delivery_count)
                for m in queue.peek(0, 10_000, self.now_ms)
            ]
            found += [
                (m.message_id or "", "dead", m.delivery_count)
                for m in queue.dead_letter.peek(0, 10_000, self.now_ms)
            ]
            assert sorted(found) == wanted


@given(STEPS)
def test_committed_transactions_are_whole_and_the_others_left_nothing(steps: list[Step]) -> None:
    both = Both()
    for step in steps:
        both.step(step)
        both.check()
