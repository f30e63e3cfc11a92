"""Two namespaces behind a gateway, and programs of official SDKs that send and receive through it.

    sender  ->  gateway  ->  primary, or the twin of its entity in the secondary
    receiver <- gateway  <-  both

Each receiver has an entity of its own. What was accepted is compared by text with what its programs
say that they got.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from tests.gateway.gateway_process import GatewayProcess
from tests.official_sdk import administration
from tests.other_languages.client_programs import Receive, ReceivingProgram, SendingProgram
from tests.other_languages.toolchains import SOURCES, built_or_skipped
from tests.outage_table import OutageTable
from tests.processes import ServedBroker, run_twinbus, until
from twinbus.servicebus.names import BOARD_MARK
from twinbus.servicebus.twins import SECONDARY_BIT

FAILOVER_S, ATTEMPT_S = 5.0, 2.0
GAP_MAX_S = FAILOVER_S + ATTEMPT_S + 5.0

MESSAGES = 20
"""That are received between two faults."""

PATIENCE_S = 180.0

LOCK_LOST = "its completion was not confirmed, so its lock was lost"
UNANSWERED = "one side stored it twice, after an attempt without an answer"
OTHER_PROCESS = "a copy of an unanswered send; another process completed the first one"

OPTIONS = (
    *("--failover-interval", f"{FAILOVER_S:g}s", "--attempt-timeout", f"{ATTEMPT_S:g}s"),
    *("--ping-interval", "1s", "--twin", "*"),
)


class Flow:
    """One program that sends to an entity, and one in some language that receives of it."""

    def __init__(self, language: str, entity: str, directory: Path, text: str) -> None:
        self.entity = entity
        self.name = f"{language} {entity}"
        topic, _, self._subscription = entity.partition("/subscriptions/")
        log = directory / self.name.replace("/", " ")
        command = built_or_skipped(language).outage
        self._open: Callable[[], ReceivingProgram] = lambda: ReceivingProgram(
            command, text, entity, language, log.with_suffix(".receiver.log")
        )
        python = (sys.executable, str(SOURCES / "python" / "outage.py"))
        self.sender = SendingProgram(python, text, topic, "app", log.with_suffix(".sender.log"))
        self._receivers = [self._open()]

    @property
    def receiver(self) -> ReceivingProgram:
        """The one that runs."""
        return self._receivers[-1]

    def kill_receiver(self) -> None:
        """Kill the receiver, and start another one."""
        self.receiver.kill()
        self._receivers.append(self._open())

    def close(self) -> None:
        for program in (self.sender, *self._receivers):
            program.kill()

    def has_received_since(self, time_s: float, count: int, sides: set[bool]) -> bool:
        """Whether so many messages came of these sides (True: the secondary)."""
        for program in (self.sender, self.receiver):
            program.require_running()
        found = [one for one in self.messages if one.at_s >= time_s]
        return sum(bool(one.number & SECONDARY_BIT) in sides for one in found) >= count

    @property
    def kills(self) -> int:
        return len(self._receivers) - 1

    @property
    def messages(self) -> list[Receive]:
        """What all receivers got, in its order."""
        return [one for program in self._receivers for one in program.messages]

    @property
    def errors(self) -> list[str]:
        """Of sends and of receives."""
        return self.sender.errors + [it for one in self._receivers for it in one.errors]

    @property
    def wanted(self) -> set[str]:
        """The texts of messages that were accepted and are due here: a subscription has a rule."""
        return {
            text
            for send in list(self.sender.sends)
            if send.error is None and (send.has_ids or not self._subscription)
            for text in send.texts
        }

    @property
    def missing(self) -> set[str]:
        return self.wanted - {one.text for one in self.messages}

    def gap_s(self, began_s: float, ended_s: float) -> float:
        """The longest time without a message between two moments."""
        times = [one.at_s for one in self.messages if began_s < one.at_s < ended_s]
        stops = [began_s, *times, ended_s]
        return max(later - earlier for earlier, later in itertools.pairwise(stops))

    def twice(self, unanswered: set[str], expired: set[int]) -> dict[str, str]:
        """Texts that were handed out more than once, and the reason of each; empty: none.

        `expired` are the numbers of messages whose lock ran out once.

        A copy of each side is none for one receiver: the gateway completes the second one.
        """
        found: dict[str, list[tuple[ReceivingProgram, Receive]]] = defaultdict(list)
        for program in self._receivers:
            for one in program.messages:
                found[one.text].append((program, one))
        return {
            text: _reason(copies, unanswered, expired)
            for text, copies in found.items()
            if len(copies) > 1
        }


def _reason(
    copies: list[tuple[ReceivingProgram, Receive]], unanswered: set[str], expired: set[int]
) -> str:
    programs, received = zip(*copies, strict=True)
    if not all(one.is_completed for one in received[:-1]):
        return LOCK_LOST
    if received[0].message_id in unanswered and len({one.number for one in received}) > 1:
        if len({one.number & SECONDARY_BIT for one in received}) == 1:
            return UNANSWERED
        if len(set(programs)) > 1:
            return OTHER_PROCESS
        if expired.intersection(one.number for one in received):
            # An SDK drops what comes while it closes its link: the program never saw that one.
            return LOCK_LOST
    return ""


class ReceivingWorld:
    """Both namespaces, the gateway and the programs."""

    def __init__(
        self,
        directory: Path,
        places: list[tuple[str, str]],
        stack: ExitStack,
        lock_s: float = 60.0,
    ) -> None:
        """`places` are languages, each with the queue or subscription that it receives of."""
        self._lock_s = lock_s
        self._lock: Any = {"lock_duration": timedelta(seconds=lock_s), "max_delivery_count": 1_000}
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
        self._ledger = directory / "ledger"
        options = (*OPTIONS, "--ledger", str(self._ledger))
        self._gateway = stack.enter_context(
            GatewayProcess(directory / "gateway", primary, secondary, options)
        )
        text = self._gateway.connection_string()
        self._flows: list[Flow] = []
        for language, place in places:
            self._flows.append(Flow(language, place, directory, text))
            stack.callback(self._flows[-1].close)

    def _create(
        self, admin: ServiceBusAdministrationClient, entity: str, subscription: str = ""
    ) -> None:
        if not subscription:
            admin.create_queue(entity, **self._lock)
            return
        admin.create_topic(entity)
        admin.create_subscription(entity, subscription, **self._lock)
        admin.delete_rule(entity, subscription, "$Default")
        admin.create_rule(entity, subscription, "red", filter=SqlRuleFilter("color = 'red'"))

    def flow(self, down: ServedBroker | None = None) -> None:
        """Wait until messages have come to each receiver from now on, of the side that is up."""
        now_s = time.time()
        sides = {side is self.sides[1] for side in self.sides if side is not down}

        def has_each_received() -> bool:
            return all(one.has_received_since(now_s, MESSAGES, sides) for one in self._flows)

        until(has_each_received, PATIENCE_S)

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

    @contextmanager
    def killing_receivers(self, chance: random.Random) -> Iterator[None]:
        """Kill each receiver at random points, and start it again."""
        stopped = threading.Event()
        seeds = [chance.random() for _ in self._flows]

        def kill(flow: Flow, seed: float) -> None:
            moments = random.Random(seed)
            while not stopped.is_set():
                # A killed receiver that had not begun would show nothing.
                while not flow.receiver.messages:
                    if stopped.wait(0.2):
                        return
                if not stopped.wait(moments.uniform(0.0, 10.0)):
                    flow.kill_receiver()

        with ThreadPoolExecutor(len(self._flows)) as pool:
            killing = [pool.submit(kill, *one) for one in zip(self._flows, seeds, strict=True)]
            try:
                yield
            finally:
                stopped.set()
            for one in killing:
                one.result()

    @property
    def kills(self) -> dict[str, int]:
        """How often each receiver was killed."""
        return {one.name: one.kills for one in self._flows}

    def gaps(self, began_s: float) -> dict[str, float]:
        """The longest time without a message of each receiver from a moment on."""
        ended_s = time.time()
        return {one.name: one.gap_s(began_s, ended_s) for one in self._flows}

    def stop(self) -> None:
        """Stop sending, receive the rest, and stop."""
        for one in self._flows:
            assert one.sender.stop() == 0
        until(self._is_empty, PATIENCE_S)
        for one in self._flows:
            assert one.receiver.stop() == 0
        assert self._gateway.terminate() == 0
        assert "Traceback" not in self._gateway.log(), self._gateway.log()

    def _is_empty(self) -> bool:
        """Whether nothing is left in either side: no message, and none in a twin."""
        # In the direction of the syphon, so that no message moves past the question.
        for side in reversed(self.sides):
            with administration(side.connection_string()) as admin:
                queues = admin.list_queues_runtime_properties()
                if any(
                    one.total_message_count for one in queues if not one.name.endswith(BOARD_MARK)
                ):
                    return False
                for topic in admin.list_topics():
                    of_topic = admin.list_subscriptions_runtime_properties(topic.name)
                    if any(one.total_message_count for one in of_topic):
                        return False
        return True

    def check(self, table: OutageTable) -> None:
        """Add what became of the messages; each flow has met the outage, and no error."""
        files = (path.read_text() for path in self._ledger.rglob("*.jsonl*"))
        lines = [json.loads(line) for text in files for line in text.splitlines()]
        unanswered = {line.get("message_id") for line in lines if line.get("outcome") == "unknown"}
        for one in self._flows:
            expired = self._expired(one.entity, lines)
            table.add_messages(one.name, one.missing, one.twice(unanswered, expired))
            assert one.errors == []
            assert any(it.number & SECONDARY_BIT for it in one.messages), one.name

    def _expired(self, entity: str, lines: list[dict[str, Any]]) -> set[int]:
        """Numbers of messages that a side brought again a lock later.

        One that the gateway gives back can come again at once.
        """
        times: dict[int, list[int]] = defaultdict(list)
        for line in lines:
            if line["operation"] == "receive" and line["entity"].lower() == entity:
                bit = SECONDARY_BIT if line["side"] == "secondary" else 0
                times[line["sequence_number"] | bit].append(line["at_ms"])
        lock_ms = 900 * self._lock_s  # The ledger notes a message a little later than it is locked.

        def is_apart(pair: tuple[int, int]) -> bool:
            return pair[1] - pair[0] >= lock_ms

        return {
            number
            for number, came in times.items()
            if any(map(is_apart, itertools.pairwise(sorted(came))))
        }
