"""The store in real processes: kill -9, a full disk, forks, two owners, damaged files."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import ServiceBusError, ServiceBusQuotaExceededError

from tests.end_to_end.raw_client import RawClient, message
from tests.official_sdk import administration, client, receive_all
from tests.processes import ServedBroker, line_of, started
from twinbus.broker.journal import EntityImage, StoredMessage
from twinbus.broker.storage import records
from twinbus.broker.storage.checksums import unsealed
from twinbus.broker.storage.data_directory import LOW_SPACE_BYTES
from twinbus.broker.storage.inventory import read_inventory
from twinbus.broker.storage.lmdb_store import LmdbStore
from twinbus.broker.storage.store import flush
from twinbus.errors import StoreError

pytestmark = pytest.mark.end_to_end

KILLS = 12
PRELUDE = """
import asyncio, os, resource, sys, time
from pathlib import Path
from twinbus.broker.storage.store import GroupCommit
from twinbus.broker.journal import StoredMessage
from twinbus.broker.storage.inventory import read_inventory
from twinbus.broker.storage.lmdb_store import LmdbStore
from twinbus.broker.storage.store import flush
from twinbus.errors import StoreError, StoreFull

directory = Path(sys.argv[1])

def message(number):
    return StoredMessage(number, enqueued_at_ms=1, size_bytes=1, message_id=f"m{number}")

def say(line):
    os.write(1, line.encode() + b"\\n")
"""

SENDER = """
# Sends and completes as fast as it can; says what is acknowledged only when it is durable.
async def main():
    store = LmdbStore(directory)
    [image] = store.recover()
    number = image.last_sequence_number
    waiting = image.messages
    commit = GroupCommit(store, asyncio.get_running_loop())
    say("ready")
    while True:
        sent, done = [], []
        for _ in range(1 + number % 40):
            number += 1
            fresh = message(number)
            store.put(1, fresh, str(number).encode() * (1 + number % 700))
            sent.append(number)
            waiting.append(fresh)
        while len(waiting) > 60:
            old = waiting.pop(number % len(waiting))
            store.remove(1, old.sequence_number)
            done.append(old.sequence_number)
        say(f"removing {done}")
        line = f"sent {sent} done {done}"
        commit.after_commit(lambda line=line: say(line))
        # Some groups go while the last one is in flight.
        await (commit.durable() if number % 3 else asyncio.sleep(0))

asyncio.run(main())
"""


def run(
    script: str, directory: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script), str(directory)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=env,
    )


def made(directory: Path, count: int = 0, size_bytes: int = 100) -> None:
    """A store with one queue of `count` messages."""
    store = LmdbStore(directory)
    store.put_entity(1, "queue", "q", {})
    for number in range(1, count + 1):
        kept = StoredMessage(number, enqueued_at_ms=1, size_bytes=1)
        store.put(1, kept, os.urandom(size_bytes))
        if number % 50 == 0:
            flush(store)
    flush(store)
    store.close()


def recovered(directory: Path) -> EntityImage:
    store = LmdbStore(directory)
    [image] = store.recover()
    for kept in image.messages:
        store.payload(1, kept.sequence_number)
    store.close()
    return image


class Witness:
    """What a sender said, over all its lives."""

    def __init__(self) -> None:
        self.sent: set[int] = set()
        self.removing: set[int] = set()
        self.done: set[int] = set()

    def hear(self, line: str) -> None:
        if not line.endswith("\n"):
            return
        for part in line.replace(" done", "\ndone").splitlines():
            word, _, numbers = part.partition(" ")
            heard = {int(number) for number in numbers.strip("[]").split(", ") if number}
            getattr(self, word).update(heard)

    def check(self, directory: Path) -> None:
        store = LmdbStore(directory)
        [image] = store.recover()
        held = {kept.sequence_number for kept in image.messages}
        # One that was being completed when the process died may be there or not.
        assert self.sent - self.removing <= held, "acknowledged messages are lost"
        assert not self.done & held, "completed messages are back"
        assert image.last_sequence_number >= max(self.sent | held), "a number could come twice"
        for number in held:
            assert store.payload(1, number) == str(number).encode() * (1 + number % 700)
        store.close()


def test_what_was_acknowledged_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    directory = tmp_path / "ns"
    made(directory)
    generator = random.Random(7)
    witness = Witness()
    for _ in range(KILLS):
        with started("-c", PRELUDE + SENDER, str(directory)) as child:
            assert line_of(child) == "ready\n"
            for _ in range(generator.randrange(2, 120)):
                witness.hear(line_of(child))
            child.kill()
            while line := line_of(child):
                witness.hear(line)
        assert child.returncode == -signal.SIGKILL
        witness.check(directory)
    assert len(witness.sent) > 1000
    assert len(witness.done) > 1000


def test_a_kill_while_the_store_is_made_leaves_a_store_that_opens(tmp_path: Path) -> None:
    # The n-th call that reaches the disk is the last one of the process.
    script = """
    import lmdb
    def dying(module, name):
        real = getattr(module, name)
        def call(*args, **kwargs):
            global left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), 9)
            return real(*args, **kwargs)
        setattr(module, name, call)
    left = int(os.environ["CALLS"])
    for name in ("mkdir", "open", "fsync", "ftruncate", "pwrite", "close"):
        dying(os, name)
    dying(lmdb, "open")
    from twinbus.broker.storage import lmdb_store
    dying(lmdb_store, "_check_format")
    store = LmdbStore(directory)
    dying(store, "write")
    dying(store, "finish")
    store.put_entity(1, "queue", "q", {})
    store.put(1, message(1), b"x")
    flush(store)
    say("acknowledged")
    store.close()
    """
    for calls in range(1, 100):
        directory = tmp_path / str(calls) / "ns"
        done = run(script, directory, env={**os.environ, "CALLS": str(calls)})
        store = LmdbStore(directory)
        held = [kept.sequence_number for image in store.recover() for kept in image.messages]
        store.close()
        if "acknowledged" in done.stdout:
            assert held == [1]
        if done.returncode == 0:
            assert calls > 10
            return
        assert done.returncode == -signal.SIGKILL, done.stderr
    pytest.fail("the process never lived to its end")


def test_a_kill_at_any_commit_of_an_upgrade_leaves_a_store_whose_upgrade_goes_on(
    tmp_path: Path,
) -> None:
    script = """
    from twinbus.broker.storage import upgrade
    left, seal_slice = int(os.environ["SLICES"]), upgrade._seal_slice
    def dying(transaction, last, slice_bytes):
        global left
        left -= 1
        done = seal_slice(transaction, last, slice_bytes)
        if left == 0:
            os.kill(os.getpid(), 9)
        return done
    upgrade._seal_slice = dying
    upgrade.upgrade.__defaults__ = (4_000,)
    LmdbStore(directory).close()
    """
    whole = tmp_path / "whole"
    made(whole, 40, 400)
    expected = stored(whole)
    for slices in range(1, 20):
        directory = tmp_path / str(slices)
        made_without_checksums(directory, expected)
        done = run(script, directory, {**os.environ, "SLICES": str(slices)})
        if done.returncode == 0:
            assert slices > 4
            return
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert stored(directory) != expected
        assert len(recovered(directory).messages) == 40
        assert stored(directory) == expected
    pytest.fail("the upgrade never lived to its end")


def stored(directory: Path) -> dict[bytes, bytes]:
    """All records; the inventory as if no commit had stored it."""
    with lmdb.open(str(directory)) as environment, environment.begin() as transaction:
        found = dict(transaction.cursor())
    inventory = read_inventory(found.get(records.INVENTORY_KEY))
    return found if inventory is None else {**found, records.INVENTORY_KEY: inventory.pack(0)}


def made_without_checksums(directory: Path, sealed: dict[bytes, bytes]) -> None:
    """A store as an earlier Twinbus wrote it."""
    directory.mkdir()
    with lmdb.open(str(directory)) as environment, environment.begin(write=True) as transaction:
        for key, record in sealed.items():
            transaction.put(key, bytes(unsealed(record)))
        transaction.put(records.FORMAT_KEY, (2).to_bytes(4, "little"))
        transaction.delete(records.INVENTORY_KEY)


def test_a_full_disk_is_said_in_one_line_and_takes_nothing_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    # A file-size limit refuses writes as a full disk does.
    script = """
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
    store = LmdbStore(directory)
    store.put_entity(1, "queue", "q", {})
    number = 0
    low = None
    try:
        while True:
            low = low or store.low_on_space()
            number += 1
            store.put(1, message(number), os.urandom(20_000))
            store.put(1, message(number + 1_000_000), b"the other half")
            flush(store)
            say(f"acknowledged {number}")
    except StoreFull as error:
        say(f"full {error}")
    say(f"low {low}")
    store.discard()
    [image] = store.recover()
    say(f"held {len(image.messages)}")
    # Messages can still be taken out.
    for kept in image.messages[:10]:
        store.remove(1, kept.sequence_number)
    flush(store)
    say(f"left {len(store.recover()[0].messages)}")
    store.close()
    """
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    *acknowledged, full, low, held, left = done.stdout.splitlines()
    count = len(acknowledged)
    assert count > 20
    assert "the disk is full" in full
    assert "MiB left, sends need 64 MiB" in low
    assert held == f"held {2 * count}", "both halves of each group, none of the last"
    assert left == f"left {2 * count - 10}"
    assert len(recovered(tmp_path).messages) == 2 * count - 10


def test_a_start_that_the_disk_has_no_room_for_is_one_line(tmp_path: Path) -> None:
    script = """
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        LmdbStore(directory)
    except StoreFull as error:
        say(str(error))
    """
    done = run(script, tmp_path)
    assert "100000 bytes free on its disk, a start needs 1048576: make room" in done.stdout


def test_little_address_space_means_a_smaller_map(tmp_path: Path) -> None:
    script = """
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))
    store = LmdbStore(directory)
    store.put_entity(1, "queue", "q", {})
    flush(store)
    say(str(store.opened().info()["map_size"]))
    store.close()
    """
    done = run(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert 2**30 <= int(done.stdout) < 8 * 2**30


def test_two_processes_cannot_own_one_directory(tmp_path: Path) -> None:
    script = """
    try:
        LmdbStore(directory)
    except StoreError as error:
        say(str(error))
    """
    store = LmdbStore(tmp_path)
    done = run(script, tmp_path)
    assert done.stdout == (
        f"{tmp_path} is in use by process {os.getpid()}: stop it or choose another data directory\n"
    )
    store.close()
    assert run(script, tmp_path).stdout == ""


def test_a_fork_neither_uses_the_store_nor_keeps_it(tmp_path: Path) -> None:
    script = """
    store = LmdbStore(directory)
    store.put_entity(1, "queue", "q", {})
    store.put(1, message(1), b"of the parent")
    flush(store)
    store.payload(1, 1)
    if os.fork() == 0:
        store.put(1, message(9), b"of the child")
        for use in (lambda: flush(store), store.recover, lambda: store.payload(1, 1)):
            try:
                use()
                say("the child used it")
            except StoreError as error:
                say(str(error).partition(" ")[2])
        store.close()
        say("the child lives on")
        sys.stdin.read()
        os._exit(0)
    for number in range(2, 5):
        store.put(1, message(number), b"of the parent")
        flush(store)
    os.kill(os.getpid(), 9)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    assert parent.wait() == -signal.SIGKILL
    refusal = (
        "is not open here: it was closed, or it was opened by the process of which this one"
        " is a fork\n"
    )
    assert [parent.stdout.readline() for _ in range(4)] == [refusal] * 3 + ["the child lives on\n"]
    # The child lives, its parent does not, and the directory is free.
    assert [kept.sequence_number for kept in recovered(tmp_path).messages] == [1, 2, 3, 4]
    parent.stdin.close()
    assert parent.stdout.read() == ""
    parent.stdout.close()


def test_a_file_that_was_cut_short_is_one_line_and_not_a_dead_process(tmp_path: Path) -> None:
    for size_bytes in (100, 9000):
        for part in (0.9, 0.5, 0.1):
            directory = tmp_path / f"{size_bytes}-{part}"
            made(directory, 500, size_bytes)
            data = directory / "data.mdb"
            os.truncate(data, int(data.stat().st_size * part))
            with pytest.raises(StoreError, match=r"data\.mdb is damaged: it has \d+ bytes"):
                LmdbStore(directory)


def test_a_file_that_is_no_store_is_one_line(tmp_path: Path) -> None:
    for index, content in enumerate((b"hello " * 5000, os.urandom(100), os.urandom(50_000))):
        directory = tmp_path / str(index)
        directory.mkdir()
        (directory / "data.mdb").write_bytes(content)
        with pytest.raises(StoreError, match="is damaged or not a store"):
            LmdbStore(directory)


def test_a_sound_file_that_is_shorter_than_its_pages_opens(tmp_path: Path) -> None:
    made(tmp_path, 10)
    environment = lmdb.open(str(tmp_path), map_size=2**30)
    data = tmp_path / "data.mdb"
    generator = random.Random(1)
    for _ in range(5000):
        # Pages that a transaction takes and gives back are not written; in time, at the very end.
        with environment.begin(write=True) as transaction:
            for _ in range(generator.choice((1, 3, 10))):
                transaction.put(
                    b"Y%d" % generator.randrange(100), bytes(generator.choice((9, 9000)))
                )
                transaction.delete(b"Y%d" % generator.randrange(100))
            inventory = read_inventory(transaction.get(records.INVENTORY_KEY))
            assert inventory is not None
            transaction.put(records.INVENTORY_KEY, inventory.pack(transaction.id()))
        needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
        if data.stat().st_size < needed:
            break
    else:
        pytest.fail("no short file came about")
    environment.close()
    assert len(recovered(tmp_path).messages) == 10
    assert data.stat().st_size >= needed, "made whole, so that the next start need not walk it"


MEGABYTE = 1024 * 1024
BODY = b"x" * (20 * 1024)
LARGE_BODY = b"x" * (200 * 1024)
SENDS_MAX = 4_000
"""More than fit."""

SENDS_AT_ONCE = 50
GUARD_LOOKS_EVERY_S = 1.0
TURNS_MAX = 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    with ServedBroker(tmp_path) as served:
        with administration(served.connection_string()) as admin:
            admin.create_queue("orders")
        yield served


def send_until_refused(sdk: ServiceBusClient) -> tuple[list[str], ServiceBusError]:
    """Ids of the acknowledged messages, and what stopped the next one."""
    acknowledged: list[str] = []
    with sdk.get_queue_sender("orders") as sender:
        for number in range(SENDS_MAX):
            try:
                sender.send_messages(ServiceBusMessage(BODY, message_id=str(number)))
            except ServiceBusError as error:
                return acknowledged, error
            acknowledged.append(str(number))
    raise AssertionError(f"{SENDS_MAX} messages were taken by a full disk")


def take_all(sdk: ServiceBusClient) -> list[str]:
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with sdk.get_queue_receiver("orders", receive_mode=mode) as receiver:
        return [str(message.message_id) for message in receive_all(receiver)]


def test_sends_are_refused_while_there_is_still_room_to_receive(broker: ServedBroker) -> None:
    broker.terminate()
    broker.file_size_max = LOW_SPACE_BYTES + 4 * MEGABYTE
    broker.start()
    with client(broker.connection_string()) as sdk:
        acknowledged, error = send_until_refused(sdk)
        assert isinstance(error, ServiceBusQuotaExceededError)
        assert "room" in str(error)
        assert acknowledged, "not even the first message was taken"
        assert "make room" in broker.log()
        assert take_all(sdk) == acknowledged
    assert "Traceback" not in broker.log()


async def fill_at_once(broker: ServedBroker) -> tuple[list[str], str]:
    """Leave no room and send on before the guard looks: what was acknowledged, and the last word.

    The guard looks once a second at most, so it is in this gap that a write can fail. On a busy
    machine the guard may look first, and refuse what then is not sent: then it is tried again.
    """
    pid = broker.process.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    connection = await RawClient.open(broker.connection_string())
    sender = await connection.sender("orders")
    acknowledged: list[str] = []
    for turn in range(TURNS_MAX):
        await sender.room()
        await asyncio.sleep(1.5 * GUARD_LOOKS_EVERY_S)
        await sender.send(message(f"before {turn}"))
        acknowledged.append(f"before {turn}")
        size = (broker.data / "contoso" / "data.mdb").stat().st_size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + MEGABYTE, hard))
        answers = {
            f"{turn}.{number}": sender.send(message(f"{turn}.{number}", BODY))
            for number in range(SENDS_AT_ONCE)
        }
        await asyncio.wait(answers.values())
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
        kept = [key for key, answer in answers.items() if answer.exception() is None]
        assert len(kept) < SENDS_AT_ONCE
        acknowledged += kept
        if connection.lost is not None:
            break
    return acknowledged, str(connection.lost)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limit of a running process")
def test_a_write_that_fails_is_not_acknowledged_and_harms_nothing(broker: ServedBroker) -> None:
    acknowledged, last_word = asyncio.run(fill_at_once(broker))
    assert "may not be stored" in last_word
    assert "nothing acknowledged is lost" in broker.log()
    assert "Traceback" not in broker.log()
    # It goes on by itself once there is room. A message whose send was not answered may be there.
    with client(broker.connection_string()) as sdk:
        with sdk.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("x", message_id="after"))
        acknowledged.append("after")
        receiver = sdk.get_queue_receiver("orders")
        stored = [str(each.message_id) for each in receiver.peek_messages(250)]
    assert [key for key in stored if key in acknowledged] == acknowledged
    broker.kill9()
    broker.restart()
    with client(broker.connection_string()) as sdk:
        assert take_all(sdk) == stored
