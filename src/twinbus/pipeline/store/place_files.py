"""Files at a place: a directory, or a URL that delta-rs or the running Spark knows.

The only module that lists, reads, writes and removes files for the tables. It needs no Spark, so
it works with every kind of session. Credentials for a URL come from the environment, as delta-rs
reads them, or from Spark (`hadoop`, docs/tables.md).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as pa_fs  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.spark.hadoop import DRAFT_SUFFIX, hadoop_files
from twinbus.pipeline.store.local_files import PIECE_BYTES, FoundFile

Bounds = Mapping[str, tuple[Any, Any]]
"""The least and the greatest value of columns, by name."""


class PlaceFiles:
    """The files at one place. Names are relative to it; LedgerError if it cannot be used."""

    def __init__(self, place: str) -> None:
        self.place = address(place)
        with self._in_words():
            self._files, self._root = _opened(self.place)

    def names(self, directory: str = "") -> list[str]:
        """Return the names in a directory; [] if it does not exist."""
        return [info.base_name for info in self._listed(directory)]

    def found(self, directory: str = "") -> list[FoundFile]:
        """Return the files in a directory; [] if it does not exist."""
        return [_found(info) for info in self._listed(directory) if info.is_file]

    def drafts(self, directory: str) -> list[FoundFile]:
        """Return the files in a directory that are being written, or whose writer was killed."""
        return [
            _found(info)
            for info in self._listed(directory, hidden=True)
            if info.is_file and info.base_name.endswith(DRAFT_SUFFIX)
        ]

    def ledger_files(self) -> dict[str, int]:
        """Return the sizes of all files by name; LedgerError if the place does not exist."""
        if not self.exists():
            raise LedgerError(f"there is no ledger at {self.place}: nothing is there")
        return {file.name: file.size_bytes for file in self.found()}

    def directories(self) -> list[str]:
        return [info.base_name for info in self._listed("") if not info.is_file]

    def below(self, directory: str) -> list[str]:
        """Return the files in a directory and its subdirectories, relative to the place."""
        with self._in_words():
            selector = pa_fs.FileSelector(self._at(directory), recursive=True)
            found = self._files.get_file_info(selector)
        root = f"{self._root}/" if self._root else ""
        return [info.path.removeprefix(root) for info in found if info.is_file]

    def found_below(self, directory: str) -> list[FoundFile]:
        """Return the files as in `below`, with their sizes and times."""
        with self._in_words():
            selector = pa_fs.FileSelector(self._at(directory), recursive=True)
            found = self._files.get_file_info(selector)
        return [
            FoundFile(info.path, info.size, info.mtime_ns // 1_000_000)
            for info in found
            if info.is_file
        ]

    @property
    def file_system(self) -> Any:
        """The file system of a URL, with the place as its root."""
        assert not self._root
        return self._files

    def exists(self, name: str = "") -> bool:
        with self._in_words():
            [info] = self._files.get_file_info([self._at(name)])
        return bool(info.type != pa_fs.FileType.NotFound)

    def content(self, name: str) -> bytes:
        """Return the content of a file, decompressed if its name ends in .gz."""
        with self._in_words(), self._files.open_input_stream(self._at(name)) as stream:
            return bytes(stream.read())

    def text(self, name: str) -> str:
        """Return the text of a small file; "" if it cannot be read."""
        try:
            return self.content(name).decode("utf-8", "replace")
        except LedgerError:
            return ""

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file in pieces, decompressed if its name ends in .gz."""
        with self._in_words(), self._files.open_input_stream(self._at(name)) as stream:
            while piece := stream.read(PIECE_BYTES):
                yield bytes(piece)

    def put(self, name: str, content: bytes) -> None:
        """Create or replace a file atomically.

        On a local disk it is synced when this returns.
        """
        # A kill before the move leaves the draft: no reader may mistake it for a ledger file.
        directory, _, last = name.rpartition("/")
        draft = self._at(f"{directory}/.{last}{DRAFT_SUFFIX}".lstrip("/"))
        with self._in_words():
            self._files.create_dir(self._at(directory), recursive=True)
            # Delta-rs takes bytes, which pyarrow passes on only from its own buffer.
            room = len(content) + 1
            with self._files.open_output_stream(draft, buffer_size=room) as stream:
                stream.write(content)
            self._sync(draft)
            self._remove_checksum(name)
            self._files.move(draft, self._at(name))
            self._sync(self._at(directory))

    def remove(self, name: str) -> bool:
        """Remove a file, or a directory with its content; False if it does not exist."""
        with self._in_words():
            [info] = self._files.get_file_info([self._at(name)])
            if info.type == pa_fs.FileType.NotFound:
                return False
            if info.is_file:
                self._files.delete_file(self._at(name))
                self._remove_checksum(name)
            else:
                self._files.delete_dir(self._at(name))
        return True

    def footer(self, name: str, columns: Collection[str]) -> tuple[int, Bounds]:
        """Return the number of rows of a Parquet file, and the bounds of some columns."""
        with self._in_words():
            read = pq.read_metadata(self._at(name), filesystem=self._files)
        return int(read.num_rows), dict(_bounds_of(read, columns))

    def _listed(self, directory: str, *, hidden: bool = False) -> Any:
        with self._in_words():
            selector = pa_fs.FileSelector(self._at(directory), allow_not_found=True)
            found = self._files.get_file_info(selector)
        # Hadoop keeps its checksums under such names, as drafts are.
        return [info for info in found if info.base_name.startswith(".") is hidden]

    def _remove_checksum(self, name: str) -> None:
        """Remove Hadoop's checksum of a file: Spark would refuse new content."""
        directory, _, last = name.rpartition("/")
        checksum = self._at(f"{directory}/.{last}.crc".lstrip("/"))
        [info] = self._files.get_file_info([checksum])
        if info.is_file:
            self._files.delete_file(checksum)

    def _sync(self, path: str) -> None:
        """Sync a local file or directory: others are removed once it is written."""
        if not isinstance(self._files, pa_fs.LocalFileSystem):
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/") if self._root else name

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Raise what pyarrow and delta-rs raise as LedgerError."""
        try:
            yield
        except (OSError, ValueError, DeltaError, pa.ArrowException) as error:
            raise LedgerError(f"{self.place} cannot be used: {first_line(error)}") from error


def _found(info: Any) -> FoundFile:
    return FoundFile(info.base_name, info.size, info.mtime_ns // 1_000_000)


def _bounds_of(footer: Any, columns: Collection[str]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the least and the greatest value of columns; none of one that says too little."""
    for index in range(footer.num_columns):
        name = footer.schema.column(index).name
        if name not in columns:
            continue
        groups = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
        said = [group.statistics for group in groups if group.is_stats_set]
        if said and len(said) == len(groups) and all(one.has_min_max for one in said):
            yield name, (min(one.min for one in said), max(one.max for one in said))


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def address(place: str) -> str:
    """Return a directory or URL for Spark; a path is local, whatever Spark's default is."""
    if "://" in place or place.startswith("file:/"):
        return place.rstrip("/")
    return f"file:{Path(place).absolute()}"


def _opened(place: str) -> tuple[Any, str]:
    """Return the file system of a place, and the path of the place in it."""
    path = place.removeprefix("file://").removeprefix("file:")
    if "://" in path:
        return pa_fs.PyFileSystem(hadoop_files(place) or DeltaStorageHandler(place)), ""
    return pa_fs.LocalFileSystem(), path
