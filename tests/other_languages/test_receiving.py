"""Receivers of official SDKs, with their defaults, through a gateway that gives them both sides.

    sender  ->  gateway  ->  primary, or the twin of its queue in the secondary
    receiver <- gateway  <-  both

Each side is killed and hung while programs send, each to an entity of its own, and one receives of
each. Nothing that was accepted is lost; what is handed out twice had a lock that was lost, or an
attempt without an answer. `TWINBUS_ROUNDS` is the number of long outages of each kind (20).
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from tests.gateway.gateway_process import GatewayProcess
from tests.official_sdk import administration
from tests.other_languages.client_programs import Receive, ReceivingProgram, SendingProgram
from tests.other_languages.toolchains import SOURCES, built_or_skipped
from tests.processes import ServedBroker, run_twinbus, until
from twinbus.servicebus.twins import SECONDARY_BIT

# The programs are built first, with an empty cache on a machine that does more.
pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(1_800)]

FAILOVER_S, ATTEMPT_S = 5.0, 2.0
GAP_MAX_S = FAILOVER_S + ATTEMPT_S + 5.0
BUSY_S = 15.0
"""What a machine that does much more may add to the gap."""

MESSAGES = 20
"""That are received between two faults."""

LEAD_S, OUTAGE_S, TAIL_S = 3.0, 30.0, 12.0
"""Of a long outage: of healthy sends, of the fault, and of sends after it."""

ROUNDS = int(os.environ.get("TWINBUS_ROUNDS", "20"))
ROUND_LIMIT_S = 300.0
LANGUAGES = ("go", "javascript", "java")

OPTIONS = (
    *("--failover-interval", f"{FAILOVER_S:g}s", "--attempt-timeout", f"{ATTEMPT_S:g}s"),
    *("--ping-interval", "1s", "--twin", "*"),
)


class Flow:
    """One program that sends to an entity, and one in some language that receives of it."""

    def __init__(self, language: str, entity: str, directory: Path, text: str) -> None:
        self.name = f"{language} {entity}"
        self.topic, _, self.subscription = entity.partition("/subscriptions/")
        log = directory / self.name.replace("/", " ")
        python = (sys.executable, str(SOURCES / "python" / "outage.py"))
        with ExitStack() as stack:
            self.sender = stack.enter_context(
                SendingProgram(python, text, self.topic, "app", log.with_suffix(".sender.log"))
            )
            command = built_or_skipped(language).outage
            self.receiver = stack.enter_context(
                ReceivingProgram(command, text, entity, language, log.with_suffix(".receiver.log"))
            )
            self.close = stack.pop_all().close

    def has_received_since(self, time_s: float, count: int) -> bool:
        self.sender.require_running()
        return self.receiver.has_received_since(time_s, count)

    @property
    def wanted(self) -> set[str]:
        """The texts of messages that were accepted and are due here: a subscription has a rule."""
        return {
            text
            for send in list(self.sender.sends)
            if send.error is None and (send.has_ids or not self.subscription)
            for text in send.texts
        }

    @property
    def handed_out(self) -> Counter[str]:
        return Counter(one.text for one in list(self.receiver.messages))

    def without_reason(self, unanswered: set[str]) -> dict[str, list[int]]:
        """Texts that were handed out twice without a reason, with their sequence numbers.

        The reason is a lock that was lost; or an attempt without an answer, after which one side
        got the message twice. A copy of each side is none: the gateway completes the second one.
        """
        handed_out: dict[str, list[Receive]] = defaultdict(list)
        for one in self.receiver.messages:
            handed_out[one.text].append(one)
        return {
            text: [one.number for one in found]
            for text, found in handed_out.items()
            if len(found) > 1 and not _has_reason(found, unanswered)
        }


def _has_reason(found: list[Receive], unanswered: set[str]) -> bool:
    is_one_side = len({one.number & SECONDARY_BIT for one in found}) == 1
    was_sent_twice = is_one_side and found[0].message_id in unanswered
    return was_sent_twice or any(one.error is not None for one in found)


class TwinOutages:
    """Both namespaces, the gateway and the programs."""

    def __init__(self, directory: Path, places: list[tuple[str, str]], stack: ExitStack) -> None:
        """`places` are languages, each with the queue or subscription that it receives of."""
        self.sides = [
            stack.enter_context(ServedBroker(directory / name, name))
            for name in ("contoso", "contoso-dr")
        ]
        primary, secondary = (side.connection_string() for side in self.sides)
        with administration(primary) as admin:
            for _, place in places:
                self._create(admin, *place.split("/subscriptions/"))
        both = ("--primary", primary, "--secondary", secondary)
        made = run_twinbus("twins", "create", "--all", *both)
        assert made.returncode == 0, made.stdout + made.stderr
        self.ledger = directory / "ledger"
        options = (*OPTIONS, "--ledger", str(self.ledger))
        self.gateway = stack.enter_context(
            GatewayProcess(directory / "gateway", primary, secondary, options)
        )
        text = self.gateway.connection_string()
        self.flows: list[Flow] = []
        for language, place in places:
            self.flows.append(Flow(language, place, directory, text))
            stack.callback(self.flows[-1].close)

    @staticmethod
    def _create(admin: ServiceBusAdministrationClient, entity: str, subscription: str = "") -> None:
        if not subscription:
            admin.create_queue(entity)
            return
        admin.create_topic(entity)
        admin.create_subscription(entity, subscription)
        admin.delete_rule(entity, subscription, "$Default")
        admin.create_rule(entity, subscription, "red", filter=SqlRuleFilter("color = 'red'"))

    def flow(self) -> None:
        """Wait until some messages have come to each receiver from now on."""
        now_s = time.time()
        until(lambda: all(one.has_received_since(now_s, MESSAGES) for one in self.flows), 180.0)

    @contextmanager
    def fault(self, kind: str, side: ServedBroker) -> Iterator[None]:
        """Kill or hang a side, and let it come back."""
        if kind == "killed":
            side.kill9()
            try:
                yield
            finally:
                side.restart()
        else:
            side.process.send_signal(signal.SIGSTOP)
            try:
                yield
            finally:
                side.process.send_signal(signal.SIGCONT)

    def gaps(self, began_s: float) -> dict[str, float]:
        """The longest time without a message of each receiver from a moment on."""
        ended_s = time.time()
        return {one.name: one.receiver.gap_s(began_s, ended_s) for one in self.flows}

    def stop(self) -> None:
        """Stop sending, receive the rest, and stop."""
        for one in self.flows:
            assert one.sender.stop() == 0
        for one in self.flows:
            until(lambda one=one: not one.wanted - one.handed_out.keys(), 180.0)  # type: ignore[misc]
        for side in self.sides:
            with administration(side.connection_string()) as admin:
                until(lambda admin=admin: _is_empty(admin), 180.0)  # type: ignore[misc]
        for one in self.flows:
            assert one.receiver.stop() == 0
        assert self.gateway.terminate() == 0
        assert "Traceback" not in self.gateway.log(), self.gateway.log()

    def check(self) -> None:
        files = (path.read_text() for path in self.ledger.rglob("*.jsonl*"))
        lines = [json.loads(line) for text in files for line in text.splitlines()]
        unanswered = {line.get("message_id") for line in lines if line.get("outcome") == "unknown"}
        for one in self.flows:
            twice = sum(count - 1 for count in one.handed_out.values())
            sys.stderr.write(f"{one.name}: {len(one.wanted)} wanted, {twice} handed out again\n")
            assert one.sender.errors == []
            assert one.without_reason(unanswered) == {}, one.name
            assert any(it.number & SECONDARY_BIT for it in one.receiver.messages), one.name
            assert one.receiver.errors == []


def _is_empty(admin: ServiceBusAdministrationClient) -> bool:
    queues = admin.list_queues_runtime_properties()
    subscriptions = (
        one
        for topic in admin.list_topics()
        for one in admin.list_subscriptions_runtime_properties(topic.name)
    )
    counts = itertools.chain(
        (one.total_message_count for one in queues),
        (one.total_message_count for one in subscriptions),
    )
    return not any(counts)


def suffer(directory: Path, language: str, faults: list[tuple[str, int]]) -> float:
    """Let one side after the other have its fault until messages come; return the longest gap."""
    gaps: list[float] = []
    with ExitStack() as stack:
        world = TwinOutages(directory, [(language, "orders")], stack)
        for kind, number in faults:
            world.flow()
            began_s = time.time()
            with world.fault(kind, world.sides[number]):
                world.flow()
                gaps.extend(world.gaps(began_s).values())
        world.flow()
        world.stop()
        world.check()
    return max(gaps)


PRIMARY, SECONDARY = 0, 1


@pytest.mark.parametrize(
    "language",
    [
        "go",
        pytest.param("javascript", marks=pytest.mark.soak),
        pytest.param("java", marks=pytest.mark.soak),
    ],
)
def test_a_receiver_goes_on_while_the_primary_is_killed(language: str, tmp_path: Path) -> None:
    assert suffer(tmp_path, language, [("killed", PRIMARY)]) < GAP_MAX_S + BUSY_S


@pytest.mark.soak
def test_either_side_is_killed_and_hung_in_the_middle(tmp_path: Path) -> None:
    sides = (PRIMARY, SECONDARY)
    faults = [(kind, one) for kind in ("killed", "hung") for one in sides]
    assert suffer(tmp_path, "python", faults) < GAP_MAX_S + BUSY_S


@pytest.mark.soak
@pytest.mark.timeout(ROUND_LIMIT_S * (ROUNDS + 1))
@pytest.mark.parametrize("kind", ["killed", "hung"])
def test_queues_and_topics_of_each_language_go_on_in_long_outages(
    kind: str, tmp_path: Path
) -> None:
    places = [
        (language, f"{prefix}.{language}{suffix}")
        for language in LANGUAGES
        for prefix, suffix in (("orders", ""), ("news", "/subscriptions/red"))
    ]
    with ExitStack() as stack:
        world = TwinOutages(tmp_path, places, stack)
        for number in range(ROUNDS):
            world.flow()
            time.sleep(LEAD_S)
            began_s = time.time()
            with world.fault(kind, world.sides[PRIMARY]):
                time.sleep(OUTAGE_S)
            time.sleep(TAIL_S)
            gaps = world.gaps(began_s)
            said = ", ".join(f"{name} {gap_s:.1f} s" for name, gap_s in gaps.items())
            sys.stderr.write(f"{kind} {number}: {said}\n")
            assert max(gaps.values()) <= GAP_MAX_S, gaps
        world.stop()
        world.check()
