"""Numbers that cannot be kept are refused at the door, by name, and leave nothing behind."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker import fakes
from tests.unit.broker.links.management_world import NOW_MS
from tests.unit.broker.links.management_world import World as ManagedWorld
from twinbus.amqp.message import Properties, encode_message
from twinbus.amqp.types import Timestamp, ULong
from twinbus.broker.admin.atom import parse_duration
from twinbus.broker.descriptions import (
    QueueDescription,
)
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.messages.incoming import Incoming, parse
from twinbus.broker.refusals import (
    ArgumentOutOfRange,
    MessageTooLarge,
    NotAllowed,
    QuotaExceeded,
    Refusal,
)
from twinbus.broker.storage.lmdb_store import LmdbStore
from twinbus.broker.storage.store import flush
from twinbus.servicebus.names import DATE_MAX_MS, DATE_MIN_MS, FOREVER_MS

MAP_SIZE_BYTES = 2**26
DEDUP = QueueDescription(requires_duplicate_detection=True, max_size_mb=1, max_message_size_kb=600)

TOO_LATE = [ULong(2**64 - 1), ULong(2**63), Timestamp(2**63 - 1), Timestamp(DATE_MAX_MS + 1)]
TOO_EARLY = [Timestamp(-(2**63)), -(2**63), Timestamp(DATE_MIN_MS - 1)]


def wire(
    name: str, at: object = None, expires: int | None = None, created: int | None = None
) -> bytes:
    """A message with that scheduled enqueue time, absolute expiry time and creation time."""
    return encode_message(
        properties=Properties(
            message_id=name,
            absolute_expiry_time=None if expires is None else Timestamp(expires),
            creation_time=None if created is None else Timestamp(created),
        ),
        message_annotations={} if at is None else {"x-opt-scheduled-enqueue-time": at},
        data=b"x",
    )


def read(name: str, at: object = None) -> Incoming:
    return parse(wire(name, at), str)


@pytest.mark.parametrize("at", [*TOO_LATE, *TOO_EARLY])
def test_a_scheduled_time_out_of_range_is_refused_by_name_limit_and_value(at: int) -> None:
    with pytest.raises(ArgumentOutOfRange) as refused:
        read("1", at)
    for part in ("x-opt-scheduled-enqueue-time", str(int(at)), str(DATE_MIN_MS), str(DATE_MAX_MS)):
        assert part in refused.value.description


@pytest.mark.parametrize("at", [DATE_MIN_MS, -1, 0, NOW_MS, DATE_MAX_MS])
def test_every_time_of_the_calendar_is_taken_past_ones_too(at: int) -> None:
    assert read("1", Timestamp(at)).scheduled_for_ms == at


class Disk:
    """A namespace on a real store, which can be restarted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._start()

    def _start(self) -> None:
        self.store = LmdbStore(self._directory, map_size=MAP_SIZE_BYTES)
        tokens = count(1)
        self.namespace = BrokerNamespace(
            "test",
            self.store,
            lambda: next(tokens).to_bytes(16, "big"),
            notify=lambda queue: None,
            deleted=lambda path: None,
        )
        self.namespace.restore(self.store.recover(), NOW_MS)

    def restart(self) -> None:
        """Commit what was noted, and start again from what is on disk."""
        flush(self.store)
        self.store.close()
        self._start()

    def held(self, path: str = "q") -> list[str | None]:
        """Ids in a queue, in any state."""
        queue = self.namespace.get_queue(path)
        return [each.message_id for each in queue.peek(0, 100, NOW_MS)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    world = Disk(tmp_path / "ns")
    yield world
    world.store.close()


def small(name: str, **fields: Any) -> Incoming:
    return fakes.incoming(message_id=name, **fields)


REFUSED_BATCHES: dict[str, tuple[QueueDescription, list[Incoming], type[Refusal]]] = {
    "quota": (
        DEDUP,
        [small(name, size_bytes=400_000) for name in ("1", "2", "3")],
        QuotaExceeded,
    ),
    "size": (DEDUP, [small("1"), small("2", size_bytes=700_000), small("3")], MessageTooLarge),
    "session": (
        QueueDescription(requires_duplicate_detection=True, requires_session=True),
        [small("1", session_id="s"), small("2"), small("3", session_id="s")],
        NotAllowed,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_BATCHES)
@pytest.mark.parametrize("how", ["send", "schedule"])
def test_a_batch_that_is_refused_leaves_no_trace(disk: Disk, case: str, how: str) -> None:
    settings, batch, kind = REFUSED_BATCHES[case]
    disk.namespace.create_queue("q", settings, NOW_MS)
    for _ in range(2):
        queue = disk.namespace.get_queue("q")
        with pytest.raises(kind):
            getattr(disk.namespace, how)(queue, batch, NOW_MS)
        assert (disk.held(), queue.is_duplicate("1", NOW_MS)) == ([], False)
        disk.restart()


def test_what_the_store_cannot_pack_is_not_remembered_as_seen(disk: Disk) -> None:
    """The entry check makes this impossible; here it is passed by."""
    disk.namespace.create_queue("q", DEDUP, NOW_MS)
    queue = disk.namespace.get_queue("q")
    bad = small("2", scheduled_for_ms=2**63)
    with pytest.raises(struct.error):
        disk.namespace.send(queue, [small("1"), bad, small("3")], NOW_MS)
    disk.restart()
    queue = disk.namespace.get_queue("q")
    assert not queue.is_duplicate("2", NOW_MS)
    disk.namespace.send(queue, [small("1"), small("2"), small("3")], NOW_MS + 1)
    disk.restart()
    assert sorted(str(name) for name in disk.held()) == ["1", "2", "3"]


@pytest.mark.parametrize("path", ["orders", "news"])
@pytest.mark.parametrize("at", [ULong(2**63), Timestamp(-(2**63))])
def test_schedule_message_refuses_the_whole_request(path: str, at: object) -> None:
    world = ManagedWorld()
    entries = [{"message": wire("1", Timestamp(NOW_MS + 5))}, {"message": wire("2", at)}]
    status, condition, _ = world.status("schedule-message", {"messages": entries}, path)
    assert (status, condition) == (400, "com.microsoft:argument-out-of-range")
    entity = world.namespace.resolve(path)
    assert entity.scheduled_count == 0
    assert not any(image.messages for image in world.store.recover())


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("peek-message", {"from-sequence-number": ULong(2**63), "message-count": 1}),
        ("peek-message", {"from-sequence-number": 0, "message-count": ULong(2**64 - 1)}),
        ("receive-by-sequence-number", {"sequence-numbers": [1, ULong(2**63)]}),
        ("cancel-scheduled-message", {"sequence-numbers": [ULong(2**64 - 1)]}),
        ("batch-delete-messages", {"message-count": 1, "enqueued-time-utc": ULong(2**63)}),
    ],
)
def test_a_request_s_number_past_64_bits_is_refused_by_name(
    operation: str, body: dict[str, object]
) -> None:
    world = ManagedWorld()
    number = world.send()
    assert world.status(operation, body)[:2] == (400, "com.microsoft:argument-out-of-range")
    assert [each.sequence_number for each in world.queue().peek(0, 9, NOW_MS)] == [number]


@pytest.mark.parametrize(
    ("expires", "created"), [(2**63 - 1, -(2**63)), (2**63 - 1, 0), (DATE_MAX_MS, DATE_MIN_MS)]
)
def test_a_time_to_live_longer_than_any_calendar_is_for_ever(
    disk: Disk, expires: int, created: int
) -> None:
    disk.namespace.create_queue("q", DEDUP, NOW_MS)
    sent = parse(wire("1", None, expires, created), str)
    assert 0 < sent.ttl_ms <= FOREVER_MS
    disk.namespace.send(disk.namespace.get_queue("q"), [sent], NOW_MS)
    disk.restart()
    [kept] = disk.namespace.get_queue("q").peek(0, 9, NOW_MS)
    assert kept.expires_at_ms == 0 or kept.expires_at_ms == NOW_MS + expires - created


@pytest.mark.parametrize("setting", ["lock_duration_ms", "duplicate_detection_window_ms"])
def test_durations_that_no_entity_can_have_are_refused(setting: str) -> None:
    huge_ms = parse_duration("P999999999999999Y", setting)
    assert huge_ms == FOREVER_MS
    settings: dict[str, Any] = {setting: huge_ms}
    with pytest.raises(ArgumentOutOfRange, match=f"{setting} of 'q' is {FOREVER_MS} ms"):
        fakes.World().queue("q", QueueDescription(**settings))


def test_the_longest_durations_below_for_ever_are_kept(disk: Disk) -> None:
    longest_ms = FOREVER_MS - 1
    settings = QueueDescription(default_ttl_ms=longest_ms, auto_delete_on_idle_ms=longest_ms)
    queue = disk.namespace.create_queue("q", settings, NOW_MS)
    disk.namespace.send(queue, [small("1"), small("2", scheduled_for_ms=NOW_MS + 5)], NOW_MS)
    disk.namespace.run_timers(NOW_MS + 5)
    disk.restart()
    [first, second] = disk.namespace.get_queue("q").peek(0, 9, NOW_MS + 5)
    assert (first.expires_at_ms, second.expires_at_ms) == (
        NOW_MS + longest_ms, NOW_MS + 5 + longest_ms,
    )  # fmt: skip
