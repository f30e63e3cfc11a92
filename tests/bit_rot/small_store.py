"""A small store of the broker with a record of every kind, and what a reader must find in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bit_rot.flips import HARMLESS, NOTICED, WRONG
from twinbus.broker.journal import DamagedMessage, MessageState, SessionState, StoredMessage
from twinbus.broker.storage.lmdb_store import LmdbStore
from twinbus.broker.storage.store import flush
from twinbus.errors import StoreError

MAP_SIZE = 2**30
ORDERS, BILLS, GONE = 1, 2, 3
Shown = dict[str, Any]
"""What a start finds: by the name of each thing, its value."""


def message(number: int, **fields: object) -> StoredMessage:
    fields.setdefault("message_id", f"m{number}")
    return StoredMessage(number, enqueued_at_ms=5, size_bytes=3, **fields)  # type: ignore[arg-type]


def body(number: int) -> bytes:
    """Some of them longer than a page."""
    return (b"body %d " % number) * (900 if number == 4 else 12)


def fill(directory: Path) -> bytes:
    """Make the store by some commits, of which later ones remove and replace; return its file."""
    store = LmdbStore(directory, map_size=MAP_SIZE)
    for entity_id, name in ((ORDERS, "orders"), (BILLS, "bills"), (GONE, "gone")):
        store.put_entity(entity_id, "queue", name, {"about": name})
        for number in range(1, 5):
            store.put(entity_id, message(number), body(number))
        flush(store)
    store.put_session_state(ORDERS, "s", SessionState(b"old state", 4))
    store.put_message_id(ORDERS, "m1", 77)
    store.put_rule(BILLS, "r", {"number": 1})
    flush(store)
    store.put_session_state(ORDERS, "s", SessionState(b"new state", 5))
    store.remove(ORDERS, 1)
    store.drop_entity(GONE)
    flush(store)
    store.amend(ORDERS, message(2, delivery_count=4, state=MessageState.DEFERRED))
    flush(store)
    store.put(ORDERS, message(5), body(5))
    flush(store)
    store.close()
    return (directory / "data.mdb").read_bytes()


def shown(store: LmdbStore) -> Iterator[tuple[str, Any]]:
    """Everything that a start finds; of a damaged message nothing."""
    for image in store.recover():
        path = image.path
        yield path, (image.kind, image.description, image.last_sequence_number)
        for kept in image.messages:
            number = kept.sequence_number
            try:
                payload = store.payload(image.entity_id, number)
            except DamagedMessage:
                continue
            facts = kept.message_id, kept.state, kept.delivery_count
            yield f"{path}/{number}", (payload, *facts)
        for table in ("session_states", "message_ids", "rules"):
            for name, value in getattr(image, table).items():
                yield f"{path}/{table}/{name}", value


def read_twice(directory: Path, expected: Shown, later: Shown) -> str:
    """Start on the store, read all, go on writing, start again; the outcome.

    The second start shows what a damaged list of free pages does to records that were sound.
    """
    logging.disable(logging.CRITICAL)
    try:
        store = LmdbStore(directory, map_size=MAP_SIZE)
        first, why = _compared(store, expected)
        if first == WRONG:
            return f"{WRONG}: {why}"
        go_on(store, dict(shown(store)))
        store.close()
        store = LmdbStore(directory, map_size=MAP_SIZE)
        second, why = _compared(store, later)
        store.close()
    except StoreError as error:
        return f"{NOTICED}: {error}"
    return (
        f"{WRONG}: later: {why}"
        if second == WRONG
        else NOTICED
        if NOTICED in (first, second)
        else HARMLESS
    )


def go_on(store: LmdbStore, found: Shown) -> None:
    """Some commits, which use pages that earlier ones freed."""
    for number in range(6, 12):
        store.put(ORDERS, message(number), body(number))
        if number == 8 and "orders/3" in found:
            store.remove(ORDERS, 3)
        flush(store)


def _compared(store: LmdbStore, expected: Shown) -> tuple[str, str]:
    found = dict(shown(store))
    damaged = {(each.entity_id, each.sequence_number) for each in store.damaged.values()}
    for name, value in found.items():
        if name not in expected or expected[name] != value:
            return WRONG, f"{name} is {value!r:.200}"
    ids = {"orders": ORDERS, "bills": BILLS}
    for name in expected.keys() - found.keys():
        path, _, rest = name.partition("/")
        number = int(rest) if rest.isdecimal() else 0
        if not (number or rest.startswith("message_ids")) or (ids[path], number) not in damaged:
            return WRONG, f"{name} is left out in silence"
    return (NOTICED, "") if damaged else (HARMLESS, "")
