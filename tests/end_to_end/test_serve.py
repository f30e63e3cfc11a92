"""`twinbus serve` from start to stop, what a restart keeps, and wrong use in one line."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lmdb
import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.contract.certificates import write_server_files
from tests.end_to_end.raw_client import ConnectionLost, RawClient, message
from tests.official_sdk import PATIENCE_S, ClosedTogether, administration, client, is_missing
from tests.processes import ServedBroker, run_twinbus
from twinbus.broker.storage import records
from twinbus.broker.storage.checksums import is_sound, seal
from twinbus.broker.storage.inventory import read_inventory

pytestmark = pytest.mark.end_to_end

HEALTH_LIMIT_S = 1.0
STOP_LIMIT_S = 5.0


def test_health_answers_for_every_namespace_after_each_start(tmp_path: Path) -> None:
    broker = ServedBroker(tmp_path, "contoso", "contoso-dr")
    for _ in range(3):
        with broker:
            for name in ("contoso", "contoso-dr"):
                assert broker.health(name)["namespace"] == name
            broker.terminate()


@pytest.mark.soak  # a wall-clock bound: it needs a machine that does nothing else
def test_health_answers_within_a_second_of_the_command(tmp_path: Path) -> None:
    with ServedBroker(tmp_path, "contoso", "contoso-dr") as broker:
        broker.terminate()  # compiled and in the file cache from here on
    with broker:
        assert broker.start_took_s < HEALTH_LIMIT_S


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly_though_clients_are_connected(
    tmp_path: Path, number: signal.Signals
) -> None:
    with ServedBroker(tmp_path) as broker:
        text = broker.connection_string()
        over_websocket = client(text, custom_endpoint_address=f"sb://localhost:{broker.port()}")
        with administration(text) as admin, client(text) as sdk, over_websocket:
            admin.create_queue("orders")
            sender = over_websocket.get_queue_sender("orders")
            receiver = sdk.get_queue_receiver("orders")
            sender.send_messages(ServiceBusMessage("one"))
            assert receiver.receive_messages(1, max_wait_time=PATIENCE_S)
            began = time.monotonic()
            assert broker.terminate(number) == 0
            assert time.monotonic() - began < STOP_LIMIT_S
    assert "Traceback" not in broker.log()
    with broker:
        assert counted(broker, "orders") == 1


def counted(broker: ServedBroker, queue: str, name: str | None = None) -> int:
    """Messages in a queue, whatever their state."""
    with administration(broker.connection_string(name)) as admin:
        return admin.get_queue_runtime_properties(queue).total_message_count or 0


def test_two_namespaces_share_a_process_and_nothing_else(tmp_path: Path) -> None:
    with ServedBroker(tmp_path, "contoso", "contoso-dr") as broker:
        assert broker.port("contoso") != broker.port("contoso-dr")
        first, second = (broker.connection_string(name) for name in ("contoso", "contoso-dr"))
        with administration(first) as admin, administration(second) as other:
            admin.create_queue("orders")
            with pytest.raises(ResourceNotFoundError):
                other.get_queue("orders")
            with (
                client(second) as sdk,
                pytest.raises(ServiceBusAuthenticationError, check=is_missing),
            ):
                sdk.get_queue_sender("orders").send_messages(ServiceBusMessage("lost"))
            other.create_queue("orders")
            with client(first) as sdk, sdk.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("mine"))
        assert counted(broker, "orders", "contoso") == 1
        assert counted(broker, "orders", "contoso-dr") == 0
    assert sorted(path.name for path in broker.data.iterdir()) == ["contoso", "contoso-dr"]


def test_a_restart_keeps_everything_but_locks(tmp_path: Path) -> None:
    with ServedBroker(tmp_path) as broker:
        text = broker.connection_string()
        with administration(text) as admin, client(text) as sdk:
            deferred_number = fill(admin, sdk)
        broker.kill9()
        broker.restart()
        with administration(text) as admin, client(text) as sdk:
            look_again(admin, sdk, deferred_number)


def fill(admin: ServiceBusAdministrationClient, sdk: ServiceBusClient) -> int:
    """One message of each kind; the sequence number of the deferred one."""
    admin.create_queue("orders", max_delivery_count=7, user_metadata="kept")
    admin.create_queue("steps", requires_session=True)
    admin.create_topic("news")
    admin.create_subscription("news", "all")
    with ClosedTogether() as opened:
        sender = opened.add(sdk.get_queue_sender("orders"))
        receiver = opened.add(sdk.get_queue_receiver("orders"))
        names = ["dead", "deferred", "abandoned", "locked"]
        sender.send_messages([ServiceBusMessage(name, message_id=name) for name in names])
        dead, deferred, abandoned = (receiver.receive_messages(1)[0] for _ in range(3))
        receiver.dead_letter_message(dead, reason="Bad", error_description="as told")
        receiver.defer_message(deferred)
        receiver.abandon_message(abandoned)
        for _ in range(2):
            assert receiver.receive_messages(1)
        due = datetime.now(UTC) + timedelta(hours=1)
        sender.schedule_messages(ServiceBusMessage("scheduled"), due)
        opened.add(sdk.get_topic_sender("news")).send_messages(ServiceBusMessage("for all"))
        steps = opened.add(sdk.get_queue_sender("steps"))
        steps.send_messages(ServiceBusMessage("step", session_id="s"))
        session = opened.add(sdk.get_queue_receiver("steps", session_id="s"))
        session.session.set_state(b"state")
    assert deferred.sequence_number is not None
    return deferred.sequence_number


def look_again(
    admin: ServiceBusAdministrationClient, sdk: ServiceBusClient, deferred_number: int
) -> None:
    queue = admin.get_queue("orders")
    assert (queue.max_delivery_count, queue.user_metadata) == (7, "kept")
    counts = admin.get_queue_runtime_properties("orders")
    assert (counts.scheduled_message_count, counts.dead_letter_message_count) == (1, 1)
    with ClosedTogether() as opened:
        receiver = opened.add(sdk.get_queue_receiver("orders"))
        states = {str(each): each.state for each in receiver.peek_messages(9, sequence_number=1)}
        assert states == {
            "deferred": ServiceBusMessageState.DEFERRED,
            "abandoned": ServiceBusMessageState.ACTIVE,
            "locked": ServiceBusMessageState.ACTIVE,
            "scheduled": ServiceBusMessageState.SCHEDULED,
        }
        # Locks do not outlive the broker: what was locked is there for the next receiver at once.
        received = [receiver.receive_messages(1, max_wait_time=PATIENCE_S)[0] for _ in range(2)]
        counts_by_name = {str(each): each.delivery_count for each in received}
        assert counts_by_name == {"abandoned": 1, "locked": 0}
        (deferred,) = receiver.receive_deferred_messages(deferred_number)
        assert str(deferred) == "deferred"
        letters = opened.add(sdk.get_queue_receiver("orders", sub_queue="deadletter"))
        (letter,) = letters.receive_messages(1, max_wait_time=PATIENCE_S)
        assert letter.dead_letter_reason == "Bad"
        assert letter.dead_letter_error_description == "as told"
        session = opened.add(sdk.get_queue_receiver("steps", session_id="s"))
        assert session.session.get_state() == b"state"
        (step,) = session.receive_messages(1, max_wait_time=PATIENCE_S)
        assert str(step) == "step"
        subscription = opened.add(sdk.get_subscription_receiver("news", "all"))
        assert [str(each) for each in subscription.peek_messages(5)] == ["for all"]


def test_what_nobody_waits_for_is_on_disk_soon_all_the_same(tmp_path: Path) -> None:
    async def send(text: str) -> None:
        connection = await RawClient.open(text)
        sender = await connection.ready_sender("orders")
        sender.send_unasked(message("unasked"))
        # No answer comes and nothing else happens that would be committed with it.
        await asyncio.sleep(1.5)
        broker.process.kill()
        with pytest.raises(ConnectionLost):
            await connection.sender("orders")

    with ServedBroker(tmp_path) as broker:
        with administration(broker.connection_string()) as admin:
            admin.create_queue("orders")
        asyncio.run(send(broker.connection_string()))
        broker.kill9()
        broker.restart()
        assert counted(broker, "orders") == 1


def test_new_numbers_go_on_where_they_were_though_the_queue_is_empty(tmp_path: Path) -> None:
    numbers = []
    with ServedBroker(tmp_path) as broker:
        with administration(broker.connection_string()) as admin:
            admin.create_queue("orders")
        for _ in range(2):
            with client(broker.connection_string()) as sdk:
                sdk.get_queue_sender("orders").send_messages(ServiceBusMessage("one"))
                receiver = sdk.get_queue_receiver("orders")
                (message,) = receiver.receive_messages(1, max_wait_time=PATIENCE_S)
                numbers.append(message.sequence_number or 0)
                receiver.complete_message(message)
            broker.kill9()
            broker.restart()
    assert numbers[1] > numbers[0] > 0


def test_an_ephemeral_broker_writes_nothing_and_forgets_everything(tmp_path: Path) -> None:
    with ServedBroker(tmp_path, ephemeral=True) as broker:
        text = broker.connection_string()
        with administration(text) as admin, client(text) as sdk:
            admin.create_queue("orders")
            with sdk.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("brief"))
        assert counted(broker, "orders") == 1
        assert broker.terminate() == 0
        assert [path.name for path in tmp_path.iterdir()] == [broker.log_path.name]
        broker.restart()
        with administration(text) as admin:
            assert list(admin.list_queues()) == []


def send_to_nowhere(broker: ServedBroker) -> None:
    with (
        client(broker.connection_string()) as sdk,
        pytest.raises(ServiceBusAuthenticationError, check=is_missing),
    ):
        sdk.get_queue_sender("nowhere").send_messages(ServiceBusMessage("x"))


def test_the_log_has_a_line_for_each_connection_and_each_refusal(tmp_path: Path) -> None:
    with ServedBroker(tmp_path, ephemeral=True) as broker:
        before = broker.log()
        send_to_nowhere(broker)
        broker.terminate()
        lines = broker.log().removeprefix(before).splitlines()
    assert [line for line in lines if "contoso: connection from 127.0.0.1:" in line]
    (refusal,) = [line for line in lines if "refused" in line]
    assert "nowhere" in refusal
    assert "amqp:not-found" in refusal
    assert len(lines) <= 4, lines


def test_a_quiet_broker_logs_neither(tmp_path: Path) -> None:
    with ServedBroker(tmp_path, ephemeral=True, options=("--quiet",)) as broker:
        send_to_nowhere(broker)
        broker.terminate()
        assert broker.log() == ""


def test_entities_are_created_where_they_are_missing(tmp_path: Path) -> None:
    wanted = ("--queue", "orders", "--queue", "a/b", "--topic", "events/all", "--topic", "news")
    with ServedBroker(tmp_path, "contoso", "contoso-dr", options=wanted) as broker:
        with client(broker.connection_string()) as sdk, sdk.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("kept"))
        broker.terminate()
        broker.start()
        with administration(broker.connection_string("contoso")) as admin:
            assert sorted(queue.name for queue in admin.list_queues()) == ["a/b", "orders"]
            assert admin.get_queue_runtime_properties("orders").active_message_count == 1
            assert sorted(topic.name for topic in admin.list_topics()) == ["events", "news"]
            assert [one.name for one in admin.list_subscriptions("events")] == ["all"]
        with administration(broker.connection_string("contoso-dr")) as admin:
            assert not list(admin.list_queues())


@pytest.mark.parametrize("wrong", [("--queue", "a$b?"), ("--queue", "x", "--topic", "x")])
def test_an_entity_that_cannot_be_created_is_a_usage_error(wrong: tuple[str, ...]) -> None:
    done = run_twinbus("serve", "contoso", "--ephemeral", *wrong)
    assert (done.returncode, done.stdout) == (2, "")
    assert "twinbus: --queue or --topic: " in done.stderr


def test_the_connection_string_for_tls_is_printed_too_and_no_key_that_is_given(
    tmp_path: Path,
) -> None:
    chain, key = write_server_files(tmp_path)
    tls = ("--tls-cert", str(chain), "--tls-key", str(key), "--key", "my own")
    with ServedBroker(tmp_path, "contoso", ephemeral=True, options=tls) as broker:
        plain, secure = (broker.connection_string(n) for n in ("contoso", "contoso over TLS"))
        with administration(broker.connection_string(key="my own")) as admin:
            assert list(admin.list_queues()) == []
    assert plain == f"{secure}UseDevelopmentEmulator=true;"
    assert "my own" not in secure


COULD_NOT, ASKED_WRONGLY = 1, 2
"""Exit status of a command that failed, and of one that made no sense."""


def refused_start(status: int, *arguments: str) -> str:
    """The one line with which `twinbus serve` refuses to start."""
    ended = run_twinbus("serve", *arguments)
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("twinbus: ")
    assert ended.returncode == status, ended
    return lines[0]


def store_one(broker: ServedBroker) -> None:
    text = broker.connection_string()
    with administration(text) as admin, client(text) as sdk:
        admin.create_queue("kept")
        with sdk.get_queue_sender("kept") as sender:
            sender.send_messages(ServiceBusMessage("kept"))


def holds_the_one(broker: ServedBroker) -> bool:
    with client(broker.connection_string()) as sdk, sdk.get_queue_receiver("kept") as receiver:
        return [str(message) for message in receiver.peek_messages(5)] == ["kept"]


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused_start(ASKED_WRONGLY, f"contoso:{port}", "--data", str(tmp_path / "data"))
    assert f"localhost:{port}" in line
    assert "another program has the port" in line


def test_one_taken_port_of_two_leaves_nothing_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        data = str(tmp_path / "data")
        refused_start(ASKED_WRONGLY, "first:0", f"second:{port}", "--data", data)
    with ServedBroker(tmp_path, "first", "second") as broker:
        assert broker.health("second")["namespace"] == "second"


def test_a_file_in_the_way_of_the_data_directory(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("mine")
    line = refused_start(COULD_NOT, "contoso:0", "--data", str(file))
    assert str(file) in line
    assert file.read_text() == "mine"


def test_a_data_directory_that_cannot_be_made() -> None:
    # Not even root may make a directory here.
    line = refused_start(COULD_NOT, "contoso:0", "--data", "/proc/twinbus")
    assert "/proc/twinbus" in line


def test_a_data_directory_of_a_newer_format_or_of_something_else(tmp_path: Path) -> None:
    with ServedBroker(tmp_path) as broker:
        store_one(broker)
        broker.terminate()
    data = str(broker.data)
    set_format(broker.data, records.FORMAT_VERSION + 1)
    line = refused_start(COULD_NOT, "contoso:0", "--data", data)
    assert f"format {records.FORMAT_VERSION + 1}" in line
    set_format(broker.data, records.FORMAT_VERSION)
    with ServedBroker(tmp_path) as again:
        assert holds_the_one(again)
    (tmp_path / "foreign" / "contoso").mkdir(parents=True)
    (tmp_path / "foreign" / "contoso" / "data.mdb").write_bytes(b"not a database" * 1000)
    line = refused_start(COULD_NOT, "contoso:0", "--data", str(tmp_path / "foreign"))
    assert str(tmp_path / "foreign") in line


def set_format(data: Path, version: int) -> None:
    with (
        lmdb.open(str(data / "contoso")) as environment,
        environment.begin(write=True) as transaction,
    ):
        found = transaction.get(records.FORMAT_KEY)
        assert found is not None
        assert is_sound(records.FORMAT_KEY, found)
        changed = seal(records.FORMAT_KEY, version.to_bytes(records.FORMAT_BYTES, "little"))
        assert records.unpack_format(changed) == version
        transaction.put(records.FORMAT_KEY, changed)
        inventory = read_inventory(transaction.get(records.INVENTORY_KEY))
        assert inventory is not None
        transaction.put(records.INVENTORY_KEY, inventory.pack(transaction.id()))


def test_a_data_directory_in_use(tmp_path: Path) -> None:
    with ServedBroker(tmp_path) as broker:
        store_one(broker)
        line = refused_start(COULD_NOT, "contoso:0", "--data", str(broker.data))
        assert str(broker.process.pid) in line
        assert holds_the_one(broker)
