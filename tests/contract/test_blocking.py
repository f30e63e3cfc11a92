"""`twinbus.blocking` on real brokers: the same pair for threads, and what becomes of interrupts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from tests.contract.certificates import client_context
from tests.contract.pairs import embedded, interrupted, no_thread_left, numbered, quick, sides
from tests.official_sdk import receive_count
from twinbus import (
    EmbeddedBroker,
    PairClosedError,
    PairingError,
    PairNotStartedError,
    ScheduleUnavailableError,
    WrongKeyError,
)
from twinbus.blocking import EventStream, Namespace, Pair, pair_namespaces
from twinbus.broker.faults import Fault
from twinbus.broker.sas import AcceptedToken
from twinbus.servicebus.names import backlog_paths

pytestmark = pytest.mark.contract

TOKEN = AcceptedToken(name="app", text="eyJ.web.token", rights=frozenset({"Manage"}))
LIMIT_S = 60.0


broker = embedded(tls=True, tokens=[TOKEN], queues=("orders", "slow"), scope="module")


@pytest.fixture(autouse=True)
def nothing_left(broker: EmbeddedBroker) -> Iterator[None]:
    """Fail if a test leaves a thread or a socket behind."""
    with no_thread_left():
        yield


def paired(broker: EmbeddedBroker, **options: Any) -> Pair:
    return pair_namespaces(*sides(broker), quick(**options))


def drained(pair: Pair, queue: str, count: int) -> list[str]:
    with pair.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver:
        return [str(message) for message in receive_count(receiver, count)]


def test_the_block_of_the_readme_in_sync_code(broker: EmbeddedBroker) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    with paired(broker) as pair:
        assert pair.backlog_queues == backlog_paths("contoso", 2)
        with pair.get_queue_sender("orders") as sender:
            assert sender.entity_name == "orders"
            sender.send_messages(ServiceBusMessage("one"))
            sender.send_messages([ServiceBusMessage("two"), {"body": "three"}], timeout=LIMIT_S)
            batch = sender.create_message_batch()
            batch.add_message(ServiceBusMessage("four"))
            sender.send_messages(batch)
            numbers = sender.schedule_messages(numbered(2), later)
            sender.cancel_scheduled_messages(numbers)
            assert drained(pair, "orders", 4) == ["one", "two", "three", "four"]
            pair.force_failover("orders")
            sender.send_messages(ServiceBusMessage("five"))
            with pytest.raises(ScheduleUnavailableError):
                sender.schedule_messages(numbered(1), later)
            status = pair.status()
            pair.mark_healthy("orders")
            pair.freeze("orders")
            pair.unfreeze("orders")
        assert (status.entities["orders"].sent, status.entities["orders"].diverted) == (4, 1)
        assert "orders: failed over" in str(status)
    calls: list[Callable[[], object]] = [
        lambda: pair.get_queue_receiver("orders"),
        lambda: pair.get_queue_sender("orders"),
        lambda: sender.send_messages(ServiceBusMessage("late")),
    ]
    for call in calls:
        with pytest.raises(PairClosedError, match="closed"):
            call()
    with pytest.raises(PairClosedError) as late:
        sender.send_messages([ServiceBusMessage("late", message_id=name) for name in "xy"])
    assert late.value.message_ids == ("x", "y")
    # As in the core, the status tells also of a pair that was closed.
    assert pair.status().entities["orders"].sent == 4
    assert pair.status().sides["primary"].state == "closed"
    sender.close()
    pair.close()


def test_a_pair_without_a_block_is_started_and_closed(broker: EmbeddedBroker) -> None:
    strings = [broker.connection_string(name) for name in ("contoso", "contoso-dr")]
    pair = pair_namespaces(strings[0], strings[1], quick())
    with pytest.raises(PairNotStartedError, match="the pair was not started"):
        pair.get_queue_sender("orders")
    pair.start()
    with pytest.raises(PairingError, match="started already"):
        pair.start()
    pair.get_queue_sender("orders").send_messages(ServiceBusMessage("by hand"))
    assert drained(pair, "orders", 1) == ["by hand"]
    pair.close()
    # A start that fails leaves no thread.
    wrong = strings[1].replace("SharedAccessKey=", "SharedAccessKey=x")
    with pytest.raises(WrongKeyError):
        pair_namespaces(strings[0], wrong, quick()).start()


def test_events_come_to_a_thread_that_waits_for_them_to_the_very_last(
    broker: EmbeddedBroker,
) -> None:
    def listen(stream: EventStream) -> list[str]:
        return [type(event).__name__ for event in stream]

    told: list[str] = []
    with ThreadPoolExecutor(2) as pool, paired(broker) as pair:
        listening = pool.submit(listen, pair.events())
        late, dropped = pair.events(), pair.events()
        dropped.close()
        end = pair.on_event(lambda event: told.append(threading.current_thread().name))
        pair.get_queue_sender("orders")
        pair.force_failover("orders")
        end()
        count = len(told)
        pair.mark_healthy("orders")
        pair.close()
        heard = listening.result(LIMIT_S)
        end()
        # One that nobody read until the pair was gone still has all of it.
        assert listen(late) == heard
        assert listen(dropped) == []
    assert "EntityChanged" in heard
    assert heard[-1] == "SideChanged"
    assert set(told) == {"twinbus-pair"}
    assert len(told) == count


def test_a_side_is_closed_or_faulted_by_hand(broker: EmbeddedBroker) -> None:
    with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        receiver = pair.get_queue_receiver("orders")
        assert (pair.primary.state, pair.secondary.state) == ("open", "open")
        pair.secondary.fault(RuntimeError("its region is going away"))
        assert (pair.secondary.state, "going away" in pair.secondary.reason) == ("faulted", True)
        sender.send_messages(ServiceBusMessage("still by the primary"))
        assert drained(pair, "orders", 1) == ["still by the primary"]
        pair.primary.close()
        pair.primary.close()
        with pytest.raises(PairClosedError):
            sender.send_messages(ServiceBusMessage("no more"))
        with pytest.raises(ValueError, match=r"closed|shutdown"):
            receiver.receive_messages(1, max_wait_time=1)


def test_the_numbers_for_prometheus_are_the_cores(broker: EmbeddedBroker) -> None:
    with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("x"))
        assert any("twinbus" in metric.name for metric in pair.collector().collect())
        assert drained(pair, "orders", 1) == ["x"]


def test_many_threads_share_a_sender_and_a_pair(broker: EmbeddedBroker) -> None:
    with paired(broker) as pair, pair.get_queue_sender("orders") as sender:

        def work(number: int) -> None:
            sender.send_messages(ServiceBusMessage(f"shared {number}"))
            with pair.get_queue_sender("ORDERS") as own:
                own.send_messages(ServiceBusMessage(f"own {number}"))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(16)))
        assert pair.status().entities["orders"].sent == 32
        received = drained(pair, "orders", 32)
    assert sorted(received) == sorted(f"{k} {n}" for k in ("shared", "own") for n in range(16))


def test_ctrl_c_ends_the_call_and_leaves_the_pair_as_it_was(broker: EmbeddedBroker) -> None:
    with paired(broker, attempt_timeout=30.0) as pair:
        fault = broker.add_fault(Fault(kind="hang", entity="slow"), "contoso")
        try:
            sender = pair.get_queue_sender("slow")
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt), interrupted():
                sender.send_messages(ServiceBusMessage("never"))
            # An attempt takes longer.
            assert time.monotonic() - began < 25
        finally:
            broker.remove_fault(fault, "contoso")
        assert pair.status().entities["slow"].state == "healthy"
        sender.send_messages(ServiceBusMessage("surely"))
        assert drained(pair, "slow", 1) == ["surely"]


def test_ctrl_c_while_pairing_leaves_nothing_and_frees_the_namespaces(
    broker: EmbeddedBroker,
) -> None:
    primary = Namespace.from_connection_string(broker.connection_string("contoso"), "contoso")
    with socket.create_server(("localhost", 0)) as silent:
        port = silent.getsockname()[1]
        text = broker.connection_string("contoso-dr")
        hanging = text.replace(str(broker.port("contoso-dr")), str(port))
        with (
            pytest.raises(KeyboardInterrupt),
            interrupted(),
            pair_namespaces(primary, hanging, quick(attempt_timeout=30.0)),
        ):
            pytest.fail("it paired")
    with pair_namespaces(primary, text, quick()) as pair:
        assert pair.status().protected


def test_close_from_another_thread_ends_a_send_that_waits(broker: EmbeddedBroker) -> None:
    with paired(broker, attempt_timeout=2.0, retry_total=9, failover_interval=600.0) as pair:
        fault = broker.add_fault(Fault(kind="hang", entity="slow"), "contoso")
        try:
            sender = pair.get_queue_sender("slow")
            with ThreadPoolExecutor(3) as pool:
                waiting = pool.submit(sender.send_messages, ServiceBusMessage("never"))
                time.sleep(0.3)
                closing = [pool.submit(pair.close) for _ in range(2)]
                for closed in closing:
                    closed.result(LIMIT_S)
                with pytest.raises(PairingError, match="closed"):
                    waiting.result(LIMIT_S)
        finally:
            broker.remove_fault(fault, "contoso")


async def test_inside_a_coroutine_it_works_and_blocks(broker: EmbeddedBroker) -> None:
    with paired(broker) as pair, pair.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("x"))
        assert drained(pair, "orders", 1) == ["x"]


def test_a_classifier_that_asks_the_pair_is_told_so_instead_of_a_deadlock(
    broker: EmbeddedBroker,
) -> None:
    asked: list[str] = []

    def classify(error: BaseException) -> Any:
        try:
            pair.status()
        except PairingError as refusal:
            asked.append(str(refusal))
        raise error

    with (
        paired(broker, classify=classify) as pair,
        pair.get_queue_sender("nothing") as sender,
        pytest.raises(MessagingEntityNotFoundError, match="nothing"),
    ):
        sender.send_messages(ServiceBusMessage("x"))
    assert "another thread" in asked[0]


class Fetching:
    def __init__(self) -> None:
        self.threads: set[str] = set()

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.threads.add(threading.current_thread().name)
        return AccessToken(TOKEN.text, int(time.time()) + 3600)


class FetchingAsync(Fetching):
    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:  # type: ignore[override]
        return super().get_token(*scopes, **options)


@pytest.mark.parametrize("kind", [Fetching, FetchingAsync])
def test_a_credential_for_sync_code_and_one_for_asyncio_serve_senders_and_receivers(
    broker: EmbeddedBroker, kind: type[Fetching]
) -> None:
    credential = kind()
    trust = client_context()
    primary, secondary = (
        Namespace(f"localhost:{broker.port(name)}", credential, name, ssl_context=trust)
        for name in ("contoso", "contoso-dr")
    )
    with pair_namespaces(primary, secondary, quick()) as pair:
        with pair.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("signed in"))
        assert drained(pair, "orders", 1) == ["signed in"]
    # A sync fetch must not stand in the way of the loop.
    if kind is Fetching:
        assert "twinbus-pair" not in credential.threads
    else:
        assert credential.threads == {"twinbus-pair"}


def run_script(broker: EmbeddedBroker, body: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has `primary` and `secondary`; it must end by itself."""
    head = f"""
        import os, sys
        from azure.servicebus import ServiceBusMessage
        from twinbus import PairingError, SendAvailabilityOptions
        from twinbus.blocking import Namespace, Pair, pair_namespaces
        primary = {broker.connection_string("contoso")!r}
        secondary = {broker.connection_string("contoso-dr")!r}
        options = SendAvailabilityOptions(backlog_queue_count=2, enable_syphon=True, ledger="")
        pair = Pair(Namespace.of(primary), Namespace.of(secondary), options)
        pair.start()
        sender = pair.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("x"))
    """
    script = textwrap.dedent(head) + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_program_that_never_closes_its_pair_ends_at_once_and_in_silence(
    broker: EmbeddedBroker,
) -> None:
    done = run_script(broker, "import time; print(time.monotonic(), flush=True)")
    ended = time.monotonic()
    assert (done.returncode, done.stderr) == (0, "")
    assert ended - float(done.stdout) < 5


@pytest.mark.parametrize("closes", [False, True])
def test_a_program_whose_lookup_or_credential_hangs_ends_all_the_same(
    broker: EmbeddedBroker, closes: bool
) -> None:
    done = run_script(
        broker,
        f"""
        import asyncio, time
        hanging = asyncio.to_thread(time.sleep, 1_000)
        asyncio.run_coroutine_threadsafe(hanging, pair._loop_thread.loop)
        time.sleep(0.5)
        if {closes}:
            pair.close()
        print(time.monotonic(), flush=True)
        """,
    )
    ended = time.monotonic()
    assert (done.returncode, done.stderr) == (0, "")
    assert ended - float(done.stdout) < 20


def test_a_forked_child_is_told_and_the_parents_pair_goes_on(broker: EmbeddedBroker) -> None:
    done = run_script(
        broker,
        """
        later = pair_namespaces(primary, secondary, options)
        child = os.fork()
        if child == 0:
            try:
                sender.send_messages(ServiceBusMessage("child"))
            except PairingError as error:
                print(error, flush=True)
            sender.close()
            pair.close()
            # A pair of the child's own: what a worker does after the fork.
            with pair_namespaces(primary, secondary, options) as own:
                with own.get_queue_sender("orders") as mine:
                    mine.send_messages(ServiceBusMessage("child"))
            # One of the module, which nobody started before the fork.
            later.start()
            later.get_queue_sender("orders").send_messages(ServiceBusMessage("child"))
            later.close()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        sender.send_messages(ServiceBusMessage("parent"))
        later.close()
        pair.close()
        print("parent done")
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    told, parent = done.stdout.splitlines()
    assert "after the fork" in told
    assert parent == "parent done"


def test_a_program_that_is_interrupted_while_sending_can_close_and_ends(
    broker: EmbeddedBroker,
) -> None:
    fault = broker.add_fault(Fault(kind="hang", entity="slow"), "contoso")
    try:
        done = run_script(
            broker,
            """
            import signal, threading
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                with pair.get_queue_sender("slow") as slow:
                    slow.send_messages(ServiceBusMessage("never"))
            except KeyboardInterrupt:
                pair.close()
                print("closed", threading.active_count())
            """,
        )
    finally:
        broker.remove_fault(fault, "contoso")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "closed 1\n"
