"""Gives a store without checksums its checksums, a slice at a time.

The slices are transactions. Each notes in the record of the format how far it came, so that a start
after a crash goes on there, and a Twinbus that knows no checksums refuses the store from then on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from twinbus.broker.storage import records
from twinbus.broker.storage.checksums import seal, unsealed
from twinbus.broker.storage.inventory import Inventory, read_inventory
from twinbus.errors import StoreDamaged

if TYPE_CHECKING:
    import lmdb

log = logging.getLogger("twinbus.broker")

SLICE_BYTES = 16 * 2**20
"""Bounds the memory of one transaction."""


def upgrade(environment: lmdb.Environment, found: bytes, slice_bytes: int = SLICE_BYTES) -> None:
    """Seal all records that are not; `found` is the record of the format."""
    if len(found) == records.FORMAT_BYTES:
        log.info("%s has no checksums: each record gets one now", environment.path())
        last: bytes | None = b"\0"
    else:
        last = bytes(unsealed(found)[records.FORMAT_BYTES :]) or None
    while last is not None:
        with environment.begin(write=True) as transaction:
            last = _seal_slice(transaction, last, slice_bytes)


def give_format(
    transaction: lmdb.Transaction[bytes], inventory: Inventory, last: bytes = b""
) -> None:
    """Note the format, and the key up to which records are sealed; empty: all are."""
    record = seal(records.FORMAT_KEY, records.pack_format() + last)
    transaction.put(records.FORMAT_KEY, record)
    transaction.put(records.INVENTORY_KEY, inventory.pack(transaction.id()))


def _seal_slice(
    transaction: lmdb.Transaction[bytes], last: bytes, slice_bytes: int
) -> bytes | None:
    """Seal the records after the key `last`; return the last one sealed, None if no more follow."""
    stored = transaction.get(records.INVENTORY_KEY)
    inventory = Inventory() if stored is None else read_inventory(stored)
    if inventory is None:
        raise StoreDamaged("its inventory is damaged, and some of its records have no checksum")
    puts: list[tuple[bytes, bytes]] = []
    size_bytes, is_last = 0, True
    with transaction.cursor() as cursor:
        for key, record in cursor if cursor.set_range(last + b"\0") else ():
            if key in (records.FORMAT_KEY, records.INVENTORY_KEY):
                continue
            if size_bytes >= slice_bytes:
                is_last = False
                break
            sealed = seal(key, record)
            inventory.add(key, sealed)
            puts.append((key, sealed))
            size_bytes += len(sealed)
        cursor.putmulti(puts)
    give_format(transaction, inventory, b"" if is_last else puts[-1][0])
    return None if is_last else puts[-1][0]
