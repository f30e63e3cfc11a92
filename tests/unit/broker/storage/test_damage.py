"""Records that changed on the disk: what is set aside, what is refused, what stays untouched."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import lmdb
import pytest

from twinbus.broker.journal import DamagedMessage, SessionState, StoredMessage
from twinbus.broker.storage import records, upgrade
from twinbus.broker.storage.check import check_store
from twinbus.broker.storage.checksums import seal, unsealed
from twinbus.broker.storage.inventory import read_inventory
from twinbus.broker.storage.lmdb_store import LmdbStore
from twinbus.broker.storage.store import flush
from twinbus.errors import StoreDamaged, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAP_SIZE = 2**30
QUEUE, OTHER = 1, 2


def message(number: int, **fields: object) -> StoredMessage:
    return StoredMessage(number, enqueued_at_ms=5, size_bytes=3, **fields)  # type: ignore[arg-type]


def opened(path: Path) -> LmdbStore:
    return LmdbStore(path, map_size=MAP_SIZE)


def filled(path: Path) -> None:
    """A store with a record of every kind."""
    store = opened(path)
    for entity_id, name in ((QUEUE, "orders"), (OTHER, "bills")):
        store.put_entity(entity_id, "queue", name, {})
        for number in (1, 2, 3):
            store.put(entity_id, message(number, message_id=f"m{number}"), b"body %d" % number)
    store.amend(QUEUE, message(2, delivery_count=4))
    store.put_session_state(QUEUE, "s", SessionState(b"state", 5))
    store.put_message_id(QUEUE, "m1", 77)
    store.put_rule(QUEUE, "r", {"number": 1})
    flush(store)
    store.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    filled(tmp_path / "ns")
    return tmp_path / "ns"


def edit(directory: Path, changes: dict[bytes, bytes | None]) -> None:
    """Change records behind the store's back."""
    with lmdb.open(str(directory), sync=False) as environment:
        change(environment, changes)


def change(environment: lmdb.Environment, changes: dict[bytes, bytes | None]) -> None:
    """Change records in a commit that says its number, as each does."""
    with environment.begin(write=True) as transaction:
        for key, record in changes.items():
            if record is None:
                transaction.delete(key)
            else:
                transaction.put(key, record)
        inventory = read_inventory(transaction.get(records.INVENTORY_KEY))
        if inventory is not None:
            transaction.put(records.INVENTORY_KEY, inventory.pack(transaction.id()))


def stored(directory: Path) -> dict[bytes, bytes]:
    """All records; the inventory as if no commit had stored it."""
    with lmdb.open(str(directory)) as environment, environment.begin() as transaction:
        found = dict(transaction.cursor())
    inventory = read_inventory(found.get(records.INVENTORY_KEY))
    return found if inventory is None else {**found, records.INVENTORY_KEY: inventory.pack(0)}


def flips(record: bytes) -> Iterator[bytes]:
    for place in range(len(record)):
        changed = bytearray(record)
        changed[place] ^= 1 << place % 8
        yield bytes(changed)


def held(store: LmdbStore) -> dict[str, list[int]]:
    return {
        image.path: [kept.sequence_number for kept in image.messages] for image in store.recover()
    }


def test_a_message_of_which_any_byte_changed_is_set_aside_and_its_neighbours_are_not(
    directory: Path,
) -> None:
    key = records.message_key(QUEUE, 2)
    for changed in flips(stored(directory)[key]):
        edit(directory, {key: changed})
        store = opened(directory)
        assert held(store) == {"orders": [1, 3], "bills": [1, 2, 3]}
        [damage] = store.damaged.values()
        assert damage == (QUEUE, 2, "its checksum is wrong")
        assert store.payload(QUEUE, 3) == b"body 3"
        store.close()


def test_a_body_that_changes_while_the_broker_runs_is_never_given_out(directory: Path) -> None:
    store = opened(directory)
    held(store)
    key = records.message_key(QUEUE, 2)
    with store.opened().begin(write=True) as transaction:
        transaction.put(key, next(flips(transaction.get(key) or b"")))
    with pytest.raises(DamagedMessage, match="entity 1: message 2 is damaged: its checksum is wr"):
        store.payload(QUEUE, 2)
    with pytest.raises(DamagedMessage):
        store.payloads(QUEUE, [1, 2, 3])
    assert store.payloads(QUEUE, [1, 3]) == [b"body 1", b"body 3"]
    assert [damage.sequence_number for damage in store.damaged.values()] == [2]
    store.close()


def test_messages_read_in_a_row_are_those_of_their_numbers(directory: Path) -> None:
    store = opened(directory)
    held(store)
    second, third = (records.message_key(QUEUE, number) for number in (2, 3))
    with store.opened().begin(write=True) as transaction:
        record = transaction.get(second) or b""
        transaction.put(second, transaction.get(third) or b"")
        transaction.put(third, record)
    assert store.payloads(QUEUE, [1]) == [b"body 1"]
    for row in ([1, 2, 3], [2, 3], [1, 2]):
        with pytest.raises(DamagedMessage):
            store.payloads(QUEUE, row)
    store.close()


def test_a_sound_record_under_the_key_of_another_message_is_damage(directory: Path) -> None:
    found = stored(directory)
    edit(directory, {records.message_key(QUEUE, 2): found[records.message_key(QUEUE, 3)]})
    store = opened(directory)
    assert held(store)["orders"] == [1, 3]
    assert [damage[:2] for damage in store.damaged.values()] == [(QUEUE, 2)]
    store.close()


@pytest.mark.parametrize(
    ("key", "named"),
    [
        (records.message_key(QUEUE, 2), (QUEUE, 2)),
        (records.amendment_key(QUEUE, 2), (QUEUE, 2)),
        (records.named_key(records.DUPLICATE, QUEUE, "m1"), (QUEUE, 0)),
    ],
    ids=["message", "state", "id"],
)
def test_a_changed_key_names_what_is_missing_not_what_it_says(
    directory: Path, key: bytes, named: tuple[int, int]
) -> None:
    """A bit of the key changes, so the record seems to be of another entity or message."""
    whole = stored(directory)
    for changed in flips(key):
        if changed in whole or changed[0] != key[0]:
            continue  # The order of keys, or another kind of record, shows these.
        edit(directory, {key: None, changed: whole[key]})
        store = opened(directory)
        found = store.recover()
        assert [damage[:2] for damage in store.damaged.values()] == [named]
        orders = next(image for image in found if image.entity_id == QUEUE)
        left = [kept.sequence_number for kept in orders.messages]
        assert left == ([1, 2, 3] if named[1] == 0 else [1, 3])
        store.close()
        edit(directory, {changed: None, key: whole[key]})


@pytest.mark.parametrize(
    ("key", "named"),
    [
        (records.entity_key(records.ENTITY, QUEUE), ("orders", 0, "its own record")),
        (records.entity_key(records.COUNTER, OTHER), ("bills", 0, "the last sequence number")),
        (records.message_key(QUEUE, 2), ("orders", 2, "message 2")),
        (records.amendment_key(QUEUE, 2), ("orders", 2, "the state of message 2")),
        (records.named_key(records.DUPLICATE, QUEUE, "m1"), ("orders", 0, "an id that dupl")),
    ],
    ids=["entity", "counter", "message", "state", "id"],
)
def test_a_check_names_what_a_changed_key_belonged_to(
    directory: Path, key: bytes, named: tuple[str, int, str]
) -> None:
    file = directory / "data.mdb"
    whole = file.read_bytes()
    for changed in flips(key):
        file.write_bytes(whole.replace(key, changed))
        [damage] = check_store(directory).damage
        assert (damage.entity, damage.sequence_number) == named[:2]
        assert damage.what.startswith(named[2])


def test_a_check_does_not_take_a_copy_of_another_record_for_it(directory: Path) -> None:
    copied = stored(directory)[records.message_key(QUEUE, 3)]
    edit(directory, {records.message_key(QUEUE, 2): copied})
    [damage] = check_store(directory).damage
    assert (damage.entity, damage.sequence_number) == ("orders", 2)


def test_a_message_whose_state_is_damaged_is_set_aside(directory: Path) -> None:
    key = records.amendment_key(QUEUE, 2)
    for changed in flips(stored(directory)[key]):
        edit(directory, {key: changed})
        store = opened(directory)
        assert held(store)["orders"] == [1, 3]
        [damage] = store.damaged.values()
        assert damage == (QUEUE, 2, "the checksum of its state is wrong")
        store.close()


def test_a_damaged_id_of_duplicate_detection_is_noted_and_left_out(directory: Path) -> None:
    key = records.named_key(records.DUPLICATE, QUEUE, "m1")
    edit(directory, {key: next(flips(stored(directory)[key]))})
    store = opened(directory)
    assert [image.message_ids for image in store.recover()] == [{}, {}]
    assert [damage.sequence_number for damage in store.damaged.values()] == [0]
    store.close()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (records.entity_key(records.ENTITY, QUEUE), r"queue, topic or subscription \(entity 1\)"),
        (records.entity_key(records.COUNTER, QUEUE), r"the last sequence number \(orders\)"),
        (records.named_key(records.SESSION, QUEUE, "s"), r"a session's state \(orders\)"),
        (records.named_key(records.RULE, QUEUE, "r"), r"a rule \(orders\)"),
        (records.INVENTORY_KEY, "its inventory is missing or damaged"),
        (records.FORMAT_KEY, "the record of its format cannot be read"),
    ],
)
def test_damage_to_what_an_entity_rests_on_refuses_the_start_in_one_line(
    directory: Path, key: bytes, words: str
) -> None:
    for changed in flips(stored(directory)[key]):
        edit(directory, {key: changed})
        with (
            pytest.raises(StoreDamaged, match=rf"data\.mdb is damaged: .*{words}.* Put back a co"),
            closing(opened(directory)) as store,
        ):
            store.recover()


@pytest.mark.parametrize("kind", records.HELD_KINDS)
def test_a_record_that_is_gone_is_noticed(directory: Path, kind: int) -> None:
    key = next(key for key in stored(directory) if key[0] == kind)
    edit(directory, {key: None})
    store = opened(directory)
    with pytest.raises(StoreDamaged, match="13 records are found, 14 were stored"):
        store.recover()
    store.close()


def test_an_old_record_that_shows_again_is_noticed(directory: Path) -> None:
    key = records.named_key(records.SESSION, QUEUE, "s")
    old = stored(directory)[key]
    store = opened(directory)
    store.put_session_state(QUEUE, "s", SessionState(b"newer", 6))
    flush(store)
    store.close()
    edit(directory, {key: old})
    store = opened(directory)
    with pytest.raises(StoreDamaged, match="other records are found than were stored last"):
        store.recover()
    store.close()


def test_a_completed_message_that_shows_in_place_of_another_is_noticed(directory: Path) -> None:
    first, last = records.message_key(QUEUE, 1), records.message_key(QUEUE, 3)
    old = stored(directory)[first]
    store = opened(directory)
    store.remove(QUEUE, 1)
    flush(store)
    store.close()
    edit(directory, {first: old, last: None})
    store = opened(directory)
    with pytest.raises(StoreDamaged, match="other records are found than were stored last"):
        store.recover()
    store.close()


def test_a_message_that_cannot_be_found_when_it_is_removed_stops_the_commit(
    directory: Path,
) -> None:
    store = opened(directory)
    held(store)
    with store.opened().begin(write=True) as transaction:
        transaction.delete(records.message_key(QUEUE, 2))
    store.remove(QUEUE, 2)
    with pytest.raises(StoreDamaged, match="message 2 of entity 1 is to be removed, and is not"):
        flush(store)
    store.close()


def test_a_damaged_message_that_moves_stays_damaged(directory: Path) -> None:
    store = opened(directory)
    held(store)
    key = records.message_key(QUEUE, 2)
    with store.opened().begin() as transaction:
        changed = list(flips(transaction.get(key) or b""))[-6]
    change(store.opened(), {key: changed})
    store.move(QUEUE, 2, OTHER, message(4))
    flush(store)
    with pytest.raises(DamagedMessage, match="entity 2: message 4"):
        store.payload(OTHER, 4)
    store.close()
    store = opened(directory)
    assert held(store) == {"orders": [1, 3], "bills": [1, 2, 3]}
    assert [damage[:2] for damage in store.damaged.values()] == [(OTHER, 4)]
    store.close()


def unchecked(directory: Path) -> None:
    """Take a store back to the format without checksums."""
    found = stored(directory)
    edit(directory, {key: bytes(unsealed(record)) for key, record in found.items()})
    edit(directory, {records.INVENTORY_KEY: None, records.FORMAT_KEY: (2).to_bytes(4, "little")})


def test_a_store_without_checksums_gets_them_when_it_is_opened(directory: Path) -> None:
    before = stored(directory)
    unchecked(directory)
    store = opened(directory)
    assert held(store) == {"orders": [1, 2, 3], "bills": [1, 2, 3]}
    assert store.payload(QUEUE, 2) == b"body 2"
    assert store.damaged == {}
    store.close()
    assert stored(directory) == before


def test_an_empty_store_without_checksums_is_upgraded(tmp_path: Path) -> None:
    opened(tmp_path).close()
    unchecked(tmp_path)
    opened(tmp_path).close()
    assert set(stored(tmp_path)) == {records.FORMAT_KEY, records.INVENTORY_KEY}


def test_an_upgrade_in_slices_seals_each_record_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored(directory)
    unchecked(directory)
    monkeypatch.setattr(upgrade.upgrade, "__defaults__", (100,))
    opened(directory).close()
    assert stored(directory) == before


def test_an_older_twinbus_refuses_a_store_that_is_half_upgraded(directory: Path) -> None:
    # It reads the first four bytes of the record as the version.
    half = seal(records.FORMAT_KEY, records.pack_format() + records.message_key(1, 1))
    assert records.unpack_format(half) == records.FORMAT_VERSION != records.UNCHECKED_VERSION


def test_a_bit_that_brings_back_the_commit_before_is_noticed(directory: Path) -> None:
    store = opened(directory)
    store.put(QUEUE, message(4), b"body 4")
    flush(store)
    number = store.opened().info()["last_txnid"]
    store.close()
    file = directory / "data.mdb"
    whole, place = file.read_bytes(), (number & 1) * 4096 + 144
    assert whole[place : place + 8] == number.to_bytes(8, "little")
    for bit in range(64):
        spoilt = (number ^ 1 << bit).to_bytes(8, "little")
        file.write_bytes(whole[:place] + spoilt + whole[place + 8 :])
        with pytest.raises(StoreError, match="damaged"):
            opened(directory)
    file.write_bytes(whole)
    store = opened(directory)
    assert held(store)["orders"] == [1, 2, 3, 4]
    store.close()


def test_an_index_that_begins_where_that_of_an_earlier_commit_did_is_noticed(
    directory: Path,
) -> None:
    file = directory / "data.mdb"
    roots = {file.read_bytes()[at : at + 8] for at in (128, 4096 + 128)}
    store = opened(directory)
    for number in (4, 5, 6):
        store.put(QUEUE, message(number), b"body")
        flush(store)
    page = (store.opened().info()["last_txnid"] & 1) * 4096
    store.close()
    whole = file.read_bytes()
    for root in roots - {whole[page + 128 : page + 136]}:
        file.write_bytes(whole[: page + 128] + root + whole[page + 136 :])
        with pytest.raises(StoreDamaged, match="the index is wrong: "):
            opened(directory)
