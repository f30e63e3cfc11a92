"""Receivers of official SDKs, with their defaults, through a gateway that gives them both sides.

    sender  ->  gateway  ->  primary, or the twin of its queue in the secondary
    receiver <- gateway  <-  both

Each side is killed and hung while one program sends and one receives. Nothing that was accepted is
lost; what is handed out twice had a lock that was lost, or an attempt without an answer.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.gateway.gateway_process import GatewayProcess
from tests.official_sdk import administration
from tests.other_languages.client_programs import ReceivingProgram, SendingProgram
from tests.other_languages.toolchains import SOURCES, built_or_skipped
from tests.processes import ServedBroker, until
from twinbus.namespace.namespace import Namespace
from twinbus.servicebus.twins import SECONDARY_BIT, twin_mark

# The programs are built first, with an empty cache on a machine that does more.
pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(1_800)]

QUEUE = "orders"
MESSAGES = 20
"""That are received between two faults."""

FAILOVER_S, ATTEMPT_S = 5.0, 2.0
GAP_MAX_S = FAILOVER_S + ATTEMPT_S + 5.0
BUSY_S = 15.0
"""What a machine that does much more may add to the gap."""

OPTIONS = (
    *("--failover-interval", f"{FAILOVER_S:g}s", "--attempt-timeout", f"{ATTEMPT_S:g}s"),
    *("--ping-interval", "1s", "--twin", QUEUE),
)


class TwinOutages:
    """Both namespaces, the gateway and the two programs."""

    def __init__(self, directory: Path, language: str, stack: ExitStack) -> None:
        self.sides = [
            stack.enter_context(ServedBroker(directory / name, name))
            for name in ("contoso", "contoso-dr")
        ]
        primary, secondary = (side.connection_string() for side in self.sides)
        with administration(primary) as admin:
            admin.create_queue(QUEUE)
        mark = twin_mark(Namespace.from_connection_string(primary).label)
        with administration(secondary) as admin:
            admin.create_queue(QUEUE, user_metadata=mark)
        self.ledger = directory / "ledger"
        self.gateway = stack.enter_context(
            GatewayProcess(
                directory / "gateway",
                primary,
                secondary,
                (*OPTIONS, "--ledger", str(self.ledger)),
            )
        )
        text = self.gateway.connection_string()
        python = (sys.executable, str(SOURCES / "python" / "outage.py"))
        self.sender = stack.enter_context(
            SendingProgram(python, text, QUEUE, "app", directory / "sender.log")
        )
        command = built_or_skipped(language).outage
        self.receiver = stack.enter_context(
            ReceivingProgram(command, text, QUEUE, language, directory / "receiver.log")
        )

    def flow(self, count: int = MESSAGES) -> None:
        """Wait until so many messages have come from now on."""
        now_s = time.time()
        until(lambda: self.receiver.has_received_since(now_s, count), 180.0)

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

    def stop(self) -> None:
        """Stop sending, receive the rest, and stop."""
        assert self.sender.stop() == 0
        until(lambda: not self.sender.accepted - self.handed_out.keys(), 180.0)
        for side in self.sides:
            with administration(side.connection_string()) as admin:
                until(lambda: _is_empty(admin), 180.0)
        assert self.receiver.stop() == 0
        assert self.gateway.terminate() == 0
        assert "Traceback" not in self.gateway.log(), self.gateway.log()

    @property
    def handed_out(self) -> Counter[str]:
        return Counter(one.text for one in self.receiver.messages)

    def without_reason(self) -> dict[str, int]:
        """Texts that were handed out twice, though no lock was lost and each attempt answered."""
        files = (path.read_text() for path in self.ledger.rglob("*.jsonl*"))
        lines = [json.loads(line) for text in files for line in text.splitlines()]
        unanswered = {line.get("message_id") for line in lines if line.get("outcome") == "unknown"}
        lost = {one.text for one in self.receiver.messages if one.error is not None}
        ids = {one.text: one.message_id for one in self.receiver.messages}
        return {
            text: count
            for text, count in self.handed_out.items()
            if count > 1 and text not in lost and ids[text] not in unanswered
        }


def _is_empty(admin: object) -> bool:
    queues = admin.list_queues_runtime_properties()  # type: ignore[attr-defined]
    return not any(queue.total_message_count for queue in queues)


def suffer(
    directory: Path, language: str, faults: list[tuple[str, int]]
) -> dict[tuple[str, int], float]:
    """Let one side after the other have its fault; the longest gap in each."""
    gaps = {}
    with ExitStack() as stack:
        world = TwinOutages(directory, language, stack)
        for kind, number in faults:
            world.flow()
            began_s = time.time()
            with world.fault(kind, world.sides[number]):
                world.flow()
                gaps[kind, number] = world.receiver.gap_s(began_s, time.time())
        world.flow()
        world.stop()
        assert world.sender.errors == []
        assert world.without_reason() == {}
        assert any(one.number & SECONDARY_BIT for one in world.receiver.messages)
        assert world.receiver.errors == []
    print(f"{language}: {gaps}")  # noqa: T201
    return gaps


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
    gaps = suffer(tmp_path, language, [("killed", PRIMARY)])
    assert max(gaps.values()) < GAP_MAX_S + BUSY_S


@pytest.mark.soak
def test_either_side_is_killed_and_hung_in_the_middle(tmp_path: Path) -> None:
    sides = (PRIMARY, SECONDARY)
    gaps = suffer(tmp_path, "python", [(kind, one) for kind in ("killed", "hung") for one in sides])
    assert max(gaps.values()) < GAP_MAX_S + BUSY_S
