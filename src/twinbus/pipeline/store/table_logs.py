"""Where delta-rs finds the logs of the tables.

    TableLogs      at the place itself, which delta-rs opens
    CarriedLogs    in copies on this machine, where only Spark reaches the place: what delta-rs
                   writes there is carried to the place by Spark's file system, and a version
                   counts only if no other process has made one of its number

Both ways the same code makes the same entries; tables can be changed by one and by the other.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as pa_fs  # type: ignore[import-untyped]
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler

from twinbus.pipeline.spark.hadoop import hadoop_files
from twinbus.pipeline.store.place_files import PlaceFiles

LOG_KEEP_H: Final = 7 * 24
"""How long old entries of the logs stay, so that a stream over a table can pause for a week."""

_LOG: Final = "_delta_log"
_LOG_NAME: Final = re.compile(r"(\d{20})\.(?:json|checkpoint(?:\.\d+\.\d+)?\.parquet)")
_LAST_CHECKPOINT: Final = "_last_checkpoint"


class EntryMaker(Protocol):
    """Makes files at a place."""

    def add(self, name: str, content: bytes) -> None:
        """Make a file, whole or not at all; FileExistsError if there is one."""


def logs_at(place: str) -> TableLogs:
    carrier = hadoop_files(place)
    return TableLogs(place) if carrier is None else CarriedLogs(place, carrier)


class TableLogs:
    """The logs of the tables at a place, as delta-rs opens them."""

    def __init__(self, place: str) -> None:
        self._place = place

    def address(self, table: str) -> str:
        """Return where delta-rs opens a table."""
        return f"{self._place}/{table}"

    def files(self, table: str) -> Any:
        """Return the file system of a table's own files."""
        return pa_fs.PyFileSystem(DeltaStorageHandler(f"{self._place}/{table}"))

    def files_to_read(self, table: str) -> Any:
        """Return the same for readers of a version; None: the one that delta-rs takes itself."""

    def written(self, table: str) -> None:
        """Make what delta-rs has just written count; FileExistsError if another was faster."""

    def vacuum(self, table: DeltaTable, name: str, versions: Sequence[int], keep_h: int) -> None:
        """Remove the files of a table that neither its newest version nor these have.

        0: only files that a version has removed; otherwise also remains that are older.
        """
        table.vacuum(
            retention_hours=keep_h,
            dry_run=False,
            enforce_retention_duration=False,
            # Also files that no version names: remains, and those being written.
            full=keep_h > 0,
            keep_versions=list(versions) or None,
        )
        if keep_h and "://" not in self._place:
            self._remove_empty_directories(name, keep_h)

    def shorten(self, table: DeltaTable, name: str, named: Sequence[int]) -> None:
        """Remove old entries of a log that neither the named versions nor later ones need.

        Also the old drafts of entries, whose writers were killed.
        """
        first, log = min([*named, table.version()]), f"{name}/{_LOG}"
        files = PlaceFiles(self._place)
        limit_ms = (time.time() - LOG_KEEP_H * 3600) * 1000
        entries = [(_LOG_NAME.fullmatch(one.name), one) for one in files.found(log)]
        numbered = sorted((int(found[1]), one) for found, one in entries if found is not None)
        old = [one for number, one in numbered if number < first and one.modified_ms < limit_ms]
        of_first = [one.name for number, one in numbered if number == first]
        if old and not any(one.endswith(".parquet") for one in of_first):
            # It has the files of its version, so that readers need no earlier entry.
            DeltaTable(self.address(name), version=first).create_checkpoint()
            self.written(name)
        for one in old:
            files.remove(f"{log}/{one.name}")
        for one in files.drafts(log):
            if one.modified_ms < limit_ms:
                files.remove(f"{log}/{one.name}")

    def _remove_empty_directories(self, name: str, keep_h: int) -> None:
        """Remove what a vacuum leaves of a part on a disk: checksums, and the directory.

        Also the files of killed tasks: Spark keeps them in a `_temporary` of the part, and delta-rs
        never removes names with an underscore.
        """
        limit_s = time.time() - keep_h * 3600
        for part in Path(self._place, name).iterdir():
            is_old = part.is_dir() and part.name != _LOG and part.stat().st_mtime < limit_s
            if is_old and not any(part.glob("*.parquet")):
                shutil.rmtree(part)


class CarriedLogs(TableLogs):
    """Copies of the logs, because only Spark reaches their place."""

    def __init__(self, place: str, maker: EntryMaker) -> None:
        super().__init__(place)
        self._maker = maker
        self._files = PlaceFiles(place)
        self._copies = Path(tempfile.mkdtemp(prefix="twinbus-logs-"))
        weakref.finalize(self, shutil.rmtree, self._copies, ignore_errors=True)
        self._there: dict[str, dict[str, int]] = {}
        """The entries of each log at the place, with the time of their last change."""
        self._last: dict[str, int] = {}
        """When the copy of the note on the last checkpoint was made, by the copy's own time."""
        self._lock = threading.RLock()

    def address(self, table: str) -> str:
        with self._lock:
            self._bring(table)
            return str(Path(self._copies, table))

    def files(self, table: str) -> Any:
        return pa_fs.SubTreeFileSystem(table, self._files.file_system)

    def files_to_read(self, table: str) -> Any:
        return self.files(table)

    def written(self, table: str) -> None:
        log = Path(self._copies, table, _LOG)
        with self._lock:
            there = self._there.setdefault(table, {})
            # Versions before their checkpoints, which say that they exist.
            new = [path for path in log.iterdir() if path.is_file() and path.name not in there]
            if (last := log / _LAST_CHECKPOINT) not in new and last.exists():
                new += [last] if last.stat().st_mtime_ns != self._last[table] else []
            for path in sorted(new, key=lambda path: (path.suffix != ".json", path.name)):
                name = f"{table}/{_LOG}/{path.name}"
                try:
                    if path.suffix == ".json":
                        self._maker.add(name, path.read_bytes())
                    else:
                        self._files.put(name, path.read_bytes())
                except BaseException:
                    # The next copy has that of the process that was faster.
                    path.unlink()
                    raise
                there[path.name] = 0

    def vacuum(self, table: DeltaTable, name: str, versions: Sequence[int], keep_h: int) -> None:
        address = self.address(name)
        opened = [table, *(DeltaTable(address, version=version) for version in versions)]
        # Relative to the table, where its copy is.
        kept = {path for one in opened for path in _paths_of(one)}
        parts: dict[str, list[tuple[str, bool]]] = {}
        limit_ms = (time.time() - keep_h * 3600) * 1000
        gone = set() if keep_h else self._removed(name)
        for file in self._files.found_below(name):
            path = file.name.removeprefix(f"{name}/")
            part = path.partition("/")[0]
            if part != _LOG:
                is_old = file.modified_ms < limit_ms if keep_h else path in gone
                parts.setdefault(part, []).append((path, is_old and path not in kept))
        for part, found in parts.items():
            going = [path for path, is_going in found if is_going]
            for path in [part] if len(going) == len(found) else going:
                self._files.remove(f"{name}/{path}")

    def _removed(self, table: str) -> set[str]:
        """Return the files that versions have removed."""
        log = Path(self._copies, table, _LOG)
        actions = (json.loads(line) for one in log.glob("*.json") for line in one.open())
        return {unquote(action["remove"]["path"]) for action in actions if "remove" in action}

    def _bring(self, table: str) -> None:
        """Make the copy of a log what the log is."""
        log, known = Path(self._copies, table, _LOG), self._there.get(table, {})
        found = {one.name: one.modified_ms for one in self._files.found(f"{table}/{_LOG}")}
        if not found:
            shutil.rmtree(log.parent, ignore_errors=True)
        else:
            log.mkdir(parents=True, exist_ok=True)
        for path in log.iterdir() if found else ():
            if path.name not in found:
                path.unlink()
        for name, changed_ms in found.items():
            # An entry never changes, but the note on the last checkpoint does.
            if name not in known or (name == _LAST_CHECKPOINT and known[name] != changed_ms):
                (log / name).write_bytes(self._files.content(f"{table}/{_LOG}/{name}"))
        if (last := log / _LAST_CHECKPOINT).exists():
            self._last[table] = last.stat().st_mtime_ns
        self._there[table] = found


def _paths_of(table: DeltaTable) -> list[str]:
    """Return the files of a version, relative to the table."""
    return [unquote(row["path"]) for row in pa.table(table.get_add_actions()).to_pylist()]
