"""Reads every record of a data directory and reports what is damaged; changes nothing.

A child process reads: a changed index can lead LMDB outside its file, which kills who reads.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import lmdb

from twinbus.broker.storage import records
from twinbus.broker.storage.checksums import Data, is_sound, own_key, unsealed
from twinbus.broker.storage.data_directory import DATA_FILE, DataDirectory
from twinbus.broker.storage.inventory import Inventory, read_inventory
from twinbus.broker.storage.lmdb_store import check_commits
from twinbus.errors import StoreDamaged, StoreError

PROGRESS_RECORDS = 10_000
"""Records between two reports of progress."""

_WHOLE_INDEX = "the index is wrong: "
_KINDS = {
    records.ENTITY: "its own record",
    records.COUNTER: "the last sequence number",
    records.MESSAGE: "message",
    records.AMENDMENT: "the state of message",
    records.SESSION: "a session's state",
    records.DUPLICATE: "an id that duplicate detection remembered",
    records.RULE: "a rule",
    records.DROPPED: "the note that it was deleted",
}


@dataclass(frozen=True, slots=True)
class DamageFound:
    """One damage. No entity: it concerns the whole store; number 0: no single message."""

    entity: str | None
    sequence_number: int
    what: str

    def __str__(self) -> str:
        return self.what if self.entity is None else f"{self.entity}: {self.what}"


@dataclass(slots=True)
class Checked:
    """What was read of one store."""

    messages: int
    records: int
    damage: list[DamageFound]
    has_checksums: bool = True


def stores_in(directory: Path) -> list[Path]:
    """The directories of the namespaces in a data directory, or itself if it is one of these."""
    if (directory / DATA_FILE).is_file():
        return [directory]
    try:
        found = sorted(path.parent for path in directory.glob(f"*/{DATA_FILE}"))
    except OSError as error:
        raise StoreError(f"{directory} cannot be read: {error.strerror}") from error
    if not found:
        raise StoreError(f"{directory} is not a data directory: no {DATA_FILE} is in it")
    return found


def check_store(path: Path, progress: Callable[[int], object] = lambda _: None) -> Checked:
    """Read everything of one store; `progress` gets the number of records that were read.

    Raises `StoreError` if a broker has the store, or if it is not one.
    """
    directory = DataDirectory(path)
    try:
        return _read_in_child(path, progress)
    finally:
        directory.release()


def _read_in_child(path: Path, progress: Callable[[int], object]) -> Checked:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - coverage does not follow a fork
        status = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w", encoding="utf-8") as pipe:
                _tell(path, pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    told: dict[str, Any] = {}
    with os.fdopen(reading, encoding="utf-8", errors="replace") as pipe:
        for line in pipe:
            if line.endswith("\n"):
                told = json.loads(line)
                progress(told["records"])
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if "error" in told:
        raise StoreError(told["error"])
    if status or "damage" not in told:
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        why = f"{_WHOLE_INDEX}reading it ended the process ({ended})"
        return Checked(0, told.get("records", 0), [DamageFound(None, 0, why)])
    damage = [DamageFound(**each) for each in told["damage"]]
    return Checked(told["messages"], told["records"], damage, told["has_checksums"])


def _tell(path: Path, pipe: IO[str]) -> None:
    """Write lines of JSON: how far it is, and at last what was found."""

    def say(**line: object) -> None:
        pipe.write(json.dumps(line) + "\n")
        pipe.flush()

    walk = _Walk()
    try:
        with (
            lmdb.open(os.fspath(path), readonly=True, lock=False) as environment,
            environment.begin(buffers=True) as transaction,
        ):
            for count in walk.read(transaction):
                say(records=count)
        check_commits(path)
    except StoreDamaged as error:
        walk.add(None, 0, str(error))
    except StoreError as error:
        say(records=0, error=f"{path / DATA_FILE} {error}")
        return
    except lmdb.Error as error:
        walk.add(None, 0, f"{_WHOLE_INDEX}{error}")
    say(
        records=walk.count,
        messages=walk.messages,
        damage=[asdict(each) for each in walk.named()],
        has_checksums=walk.has_checksums,
    )


class _Walk:
    """One pass over all records in the order of their keys."""

    def __init__(self) -> None:
        self.count = self.messages = 0
        self.has_checksums = True
        self._found = Inventory()
        self._paths: dict[int, str] = {}
        self._damage: list[tuple[int | None, int, str]] = []

    def add(self, entity_id: int | None, number: int, why: str) -> None:
        self._damage.append((entity_id, number, why))

    def named(self) -> Iterator[DamageFound]:
        for entity_id, number, why in self._damage:
            name = None
            if entity_id is not None:
                name = self._paths.get(entity_id, f"entity {entity_id}")
            yield DamageFound(name, number, why)

    def read(self, transaction: lmdb.Transaction[memoryview]) -> Iterator[int]:
        """Read all of it; yields the number of records now and then."""
        self._read_format(transaction.get(records.FORMAT_KEY))
        last = b""
        for view, record in transaction.cursor():
            key = bytes(view)
            is_right = not self.has_checksums or is_sound(key, record)
            if not is_right:
                key = own_key(key, record, transaction.get)
            if key <= last:
                self.add(None, 0, f"{_WHOLE_INDEX}records are not in order")
                return
            last = key
            if key not in (records.FORMAT_KEY, records.INVENTORY_KEY):
                self._take(key, record, is_right=is_right)
            if self.count % PROGRESS_RECORDS == 0:
                yield self.count
        if self.has_checksums:
            self._compare(read_inventory(transaction.get(records.INVENTORY_KEY)))

    def _read_format(self, record: Data | None) -> None:
        if record is None:
            raise StoreError("is an LMDB file that is not Twinbus's, or its first record is gone")
        if len(record) == records.FORMAT_BYTES:
            self.has_checksums = False
        elif not is_sound(records.FORMAT_KEY, record):
            self.add(None, 0, "the record of the format: its checksum is wrong")
            return
        elif len(unsealed(record)) > records.FORMAT_BYTES:
            raise StoreError("is half upgraded: start a broker on it once, then check again")
        version = records.unpack_format(record)
        if version not in (records.FORMAT_VERSION, records.UNCHECKED_VERSION):
            raise StoreError(f"has store format {version}, which this Twinbus does not read")

    def _take(self, key: bytes, record: Data, *, is_right: bool) -> None:
        self.count += 1
        kind = key[0]
        self.messages += kind == records.MESSAGE
        if kind not in _KINDS:
            self.add(None, 0, f"{_WHOLE_INDEX}a record of no known kind")
            return
        entity_id, is_numbered = records.key_entity(key), kind in records.NUMBERED_KINDS
        number = records.key_numbers(key)[1] if is_numbered else 0
        if not self.has_checksums:
            return
        self._found.add(key, record)
        if not is_right:
            what = f"{_KINDS[kind]} {number}" if is_numbered else _KINDS[kind]
            self.add(entity_id, number, f"{what} is damaged: its checksum is wrong")
        if kind == records.ENTITY and (is_right or is_sound(key, record)):
            self._paths[entity_id] = records.unpack_json(unsealed(record))[1]

    def _compare(self, stored: Inventory | None) -> None:
        if stored is None:
            self.add(None, 0, "the inventory is missing or damaged")
        elif self._found.count != stored.count:
            found = self._found.count
            self.add(
                None, 0, f"{_WHOLE_INDEX}{found} records are found, {stored.count} were stored"
            )
        elif self._found.total != stored.total and not self._damage:
            self.add(None, 0, f"{_WHOLE_INDEX}other records are found than were stored last")
