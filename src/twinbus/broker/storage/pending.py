"""The records that wait for the disk. Pure.

Each gets its checksum here, and no record enters the table in any other way.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView

from twinbus.broker.storage.checksums import Sealed, seal, seal_each, spoiled

Records = dict[bytes, Sealed | None]
"""By key, the record as it is stored, or None: it is to be deleted."""


SealedRecords = dict[bytes, Sealed]


def seal_run(keys: list[bytes], heads: list[bytes], rests: list[bytes]) -> SealedRecords:
    """Under each key the record that its head and its rest make."""
    return dict(zip(keys, seal_each(keys, heads, rests), strict=True))


class PendingRecords:
    """One entry for each key; the last one wins."""

    __slots__ = ("_records", "size_bytes")

    def __init__(self) -> None:
        self._records: Records = {}
        self.size_bytes = 0
        """Of all that entered; a key that entered twice may count twice."""

    def put(self, key: bytes, record: bytes, rest: bytes = b"") -> None:
        """Put a record, of which the rest may be given apart."""
        self._records[key] = sealed = seal(key, record, rest)
        self.size_bytes += len(sealed)

    def put_each(self, keys: list[bytes], heads: list[bytes], rests: list[bytes]) -> None:
        """Put under each key the record that its head and its rest make."""
        sealed = seal_each(keys, heads, rests)
        self._records.update(zip(keys, sealed, strict=True))
        self.size_bytes += sum(map(len, sealed))

    def put_sealed(self, records: SealedRecords) -> None:
        """Put records that have their checksums (`seal_run`)."""
        self._records.update(records)
        self.size_bytes += sum(map(len, records.values()))

    def delete(self, key: bytes) -> None:
        """Have the key deleted from the disk."""
        self._records[key] = None
        self.size_bytes += len(key)

    def delete_all(self, keys: list[bytes]) -> None:
        """Have these keys deleted from the disk."""
        self._records.update(dict.fromkeys(keys))
        self.size_bytes += sum(map(len, keys))

    def forget(self, key: bytes) -> None:
        """Leave the key on the disk as it is."""
        record = self._records.pop(key, None)
        self.size_bytes -= len(key) if record is None else len(record)

    def spoil(self, key: bytes) -> None:
        """Give a record that was put a checksum that is wrong."""
        record = self._records[key]
        assert record is not None
        self._records[key] = spoiled(record)

    def __contains__(self, key: bytes) -> bool:
        return key in self._records

    def __getitem__(self, key: bytes) -> Sealed | None:
        return self._records[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._records)

    def keys(self) -> KeysView[bytes]:
        return self._records.keys()

    def take(self) -> Records:
        """Everything that waits; from now on nothing does."""
        taken, self._records = self._records, {}
        self.size_bytes = 0
        return taken
