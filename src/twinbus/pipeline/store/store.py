"""The tables on disk: directories of Parquet, and commits that say which of them count.

    <tables>/bronze/batch=<n>-<attempt>/day=.../pair=.../    every record
    <tables>/journeys/batch=<n>-<attempt>/                   what batch n says of its messages
    <tables>/sums-<gold table>/batch=<n>-<attempt>/          what batch n adds to a gold table
    <tables>/commits/<number>.json                           a snapshot: the parts that count
    <tables>/checkpoint/                                     which files the stream has taken

A part is written under a new name, and counts once a commit names it. So a
batch that died is done again beside its remains, two processes that do the same batch cannot mix
their files (the first commit wins), and a reader keeps what its snapshot names. Parts that a later
snapshot replaced are removed `KEEP_S` after that, and so are remains that old.

Tasks count the rows of a part as they write it, and this process counts the rows that it can read
there: where a worker writes to a disk of its own, the two differ and the part is refused.

A place is a directory or any Hadoop URL; all access goes through Hadoop's file systems.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import Observation
from pyspark.sql import functions as F

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.spark.session import session_for_few, session_for_many

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT: Final = 2
"""Goes up when a reader of today would misread tables of tomorrow."""

BRONZE: Final = "bronze"
JOURNEYS: Final = "journeys"
SUMS: Final = "sums"
"""The parts of all gold tables: they are written together, each as `sums-<name>`."""

KEEP_S: Final = 3600.0
"""How long a report may go on reading parts that a later snapshot has replaced."""

_COMMITS: Final = "commits"
_CHECKPOINT: Final = "checkpoint"
_RAW_REMOVED: Final = "raw-removed"
_BEING_REMOVED: Final = "being-removed"
"""A mark: to remove directories is no single step, and what is left half-way looks like tables."""
_COMMITS_KEPT: Final = 10
_WORDS: Final = {BRONZE: "records", JOURNEYS: "journeys"}
_COMMIT: Final = re.compile(r"(\d+)\.json")
_PART: Final = re.compile(r"batch=(\d+)-[0-9a-f]+")

REBUILD: Final = "rebuild them (twinbus ledger rebuild LEDGER)"
"""What helps where tables are not whole: the ledger's files have all that was in them."""


class CommitConflict(Exception):
    """Another process has committed first: look at the latest snapshot again."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What the tables are after one commit. Parts are never changed, only replaced."""

    number: int = -1
    """Of the commit; -1: there is none yet."""
    batch: int = -1
    """The last batch of the stream that is in it."""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By kind (`BRONZE`, `JOURNEYS`, `SUMS`), the names of their directories, oldest first."""
    records: int = 0
    set_aside: Mapping[str, int] = field(default_factory=dict)
    """Lines that are no record, by reason (`bronze.REASONS`)."""
    fan_out: bool = False
    """A message was received at a subscription: its journey can have several rows."""
    gold: str = ""
    """The gold tables it has, with their columns, as a digest."""
    records_from: str = ""
    """The first day (ISO 8601) whose records are kept; "": all are (`retention`)."""
    replaced_ms: Mapping[str, int] = field(default_factory=dict)
    """When parts (`<kind>/<part>`) were replaced that readers of earlier snapshots may have yet."""
    format: int = FORMAT

    def with_part(self, kind: str, part: str) -> Snapshot:
        """This one and one part more."""
        return replace(self, parts={**self.parts, kind: (*self.parts_of(kind), part)})

    def parts_of(self, kind: str) -> tuple[str, ...]:
        """The names of the parts of a kind."""
        return self.parts.get(kind, ())

    def named(self) -> set[str]:
        """All its parts, each as `<kind>/<part>`."""
        return {f"{kind}/{part}" for kind, parts in self.parts.items() for part in parts}

    def following(self, before: Snapshot, now_ms: int) -> Snapshot:
        """This one as the next after `before`."""
        still_read = {
            part: at_ms
            for part, at_ms in before.replaced_ms.items()
            if at_ms > now_ms - KEEP_S * 1000
        }
        gone = dict.fromkeys(sorted(before.named() - self.named()), now_ms)
        return replace(
            self, number=before.number + 1, replaced_ms={**still_read, **gone}, format=FORMAT
        )


class TableStore:
    """The tables at one place, for one Spark session."""

    def __init__(self, spark: SparkSession, place: Path | str) -> None:
        self.session = spark
        self.place = _address(str(place))
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._path = self._jvm.org.apache.hadoop.fs.Path
        self._settings = context._jsc.hadoopConfiguration()
        self._files = self._file_system(self.place)

    def for_few(self) -> TableStore:
        """The same tables by a session that is made for few rows: nothing is compiled for them."""
        return TableStore(session_for_few(self.session), self.place)

    def for_many(self, rows: int) -> TableStore:
        """The same tables by a session that is made for so many rows; it may be this one."""
        session = session_for_many(self.session, rows)
        return self if session is self.session else TableStore(session, self.place)

    @property
    def checkpoint(self) -> str:
        """Where the stream keeps which files it has taken."""
        return f"{self.place}/{_CHECKPOINT}"

    def latest(self) -> Snapshot:
        """The last snapshot; LedgerError where its tables cannot be used."""
        numbers = self._commits()
        if not numbers:
            return Snapshot()
        found = self._read_commit(max(numbers))
        if found.format > FORMAT:
            raise LedgerError(
                f"the tables at {self.place} were made by a later version of Twinbus (format"
                f" {found.format}, this one knows {FORMAT}): update Twinbus, or name other ones"
            )
        return found

    def require_whole(self) -> Snapshot:
        """The last snapshot; LedgerError where a stream would miss files, or take some twice."""
        if self._files.exists(self._path(f"{self.place}/{_BEING_REMOVED}")):
            raise LedgerError(
                f"a rebuild of the tables at {self.place} is at work, or was broken off: wait for"
                f" it, or {REBUILD}"
            )
        # Spark's word first: a process that commits meanwhile does so before Spark notes it.
        noted = [int(name) for name in self._names(f"{_CHECKPOINT}/commits") if name.isdecimal()]
        snapshot = self.latest()
        if max(noted, default=-1) > snapshot.batch:
            raise LedgerError(
                f"the tables at {self.place} have lost commits: they end at batch"
                f" {snapshot.batch}, and batch {max(noted)} was committed; {REBUILD}"
            )
        # Spark makes the directory first and its parts as it goes.
        if snapshot.number >= 0 and not self._names(f"{_CHECKPOINT}/offsets"):
            raise LedgerError(
                f"the tables at {self.place} have lost their directory {_CHECKPOINT}, which says"
                f" which files of the ledger they hold: {REBUILD}"
            )
        return snapshot

    def new_part(self, batch: int) -> str:
        """A name for what one attempt at a batch writes."""
        return f"batch={batch}-{uuid.uuid4().hex[:12]}"

    def write(
        self, rows: DataFrame, kind: str, part: str, *, partition_by: Sequence[str] = ()
    ) -> int:
        """Write one part; return its rows. It does not count before a commit names it.

        LedgerError where this process cannot read all the rows that tasks have written.
        """
        seen = Observation()
        counted = rows.observe(seen, F.count("*").alias("rows"))
        writer = counted.write.option("compression", "zstd").partitionBy(*partition_by)
        writer.parquet(f"{self.place}/{kind}/{part}")
        # Spark drops the count of what it knows to be empty.
        written: int = seen.get.get("rows", 0)
        found = self.rows_in(kind, part)
        if found != written:
            raise LedgerError(
                f"{written:,} {_WORDS.get(kind, f'rows of {kind}')} were written to"
                f" {self.place}/{kind}/{part} and {found:,} can be read there, so nothing was"
                " committed: workers write to disks of their own; keep the tables in a directory"
                " that all machines share, or at a URL that all machines reach"
            )
        return written

    def rows_in(self, kind: str, part: str) -> int:
        """How many rows this process can read in a part, by the footers of its files."""
        path = self._path(f"{self.place}/{kind}/{part}")
        if not self._files.exists(path):
            return 0
        files, rows = self._files.listFiles(path, True), 0
        while files.hasNext():
            status = files.next()
            if status.getPath().getName().endswith(".parquet"):
                rows += self._rows_of(status)
        return rows

    def read(self, kind: str, parts: Sequence[str], schema: StructType) -> DataFrame:
        """All rows of these parts; none where there is no part."""
        if not parts:
            return self.session.createDataFrame([], schema)
        # With the kind's directory as their root Spark takes the parts for one table; the name of a
        # part would then be a column.
        reader = self.session.read.schema(schema).option("basePath", f"{self.place}/{kind}")
        # Spark takes a path for a pattern.
        place = _literal(self.place) if self.place.startswith("file:/") else self.place
        return reader.parquet(*(f"{place}/{kind}/{part}" for part in parts)).drop("batch")

    def read_files(self, files: Sequence[str], schema: StructType) -> DataFrame:
        """The rows of some files, by the addresses that Spark gave them (`_metadata.file_path`)."""
        # These are URIs, and Spark takes a path for a pattern.
        plain = [self._path(self._jvm.java.net.URI(file)).toString() for file in files]
        return self.session.read.schema(schema).parquet(*map(_literal, plain))

    def commit(self, before: Snapshot, after: Snapshot) -> Snapshot:
        """Make `after` follow `before`, at once or not at all; CommitConflict: another one does."""
        committed = after.following(before, _now_ms())
        text = json.dumps(asdict(committed), indent=1)
        target = self._path(f"{self.place}/{_COMMITS}/{committed.number}.json")
        if self._files.exists(target):
            raise CommitConflict(target.toString())
        # Readers skip names that begin with a dot.
        draft = self._path(f"{self.place}/{_COMMITS}/.{uuid.uuid4().hex}")
        with closing(self._files.create(draft, False)) as stream:
            stream.write(bytearray(text.encode()))
        try:
            if not self._give_name(draft, target):
                raise CommitConflict(target.toString())
        finally:
            self._files.delete(draft, False)
        return committed

    def sweep(self, *, keep_s: float = KEEP_S) -> None:
        """Remove parts that are no longer read, leftovers, and commits no longer needed."""
        latest = self.latest()
        numbers = sorted(self._commits())
        limit_ms = _now_ms() - keep_s * 1000
        replaced = (part for part, at_ms in latest.replaced_ms.items() if at_ms > limit_ms)
        kept = latest.named().union(replaced)
        for name in self._names(""):
            if name in {_COMMITS, _CHECKPOINT}:
                continue
            kind = SUMS if name.startswith(f"{SUMS}-") else name
            for part, changed_ms in self._listed(name):
                found = _PART.fullmatch(part)
                # Of a later batch: another process may be writing it.
                done = found is not None and int(found[1]) <= latest.batch
                if done and f"{kind}/{part}" not in kept and changed_ms < limit_ms:
                    self._files.delete(self._path(f"{self.place}/{name}/{part}"), True)
        for number in numbers[:-_COMMITS_KEPT]:
            self._files.delete(self._path(f"{self.place}/{_COMMITS}/{number}.json"), False)

    def size_of(self, kind: str, part: str) -> tuple[int, int]:
        """How many files and bytes one part takes."""
        told = self._files.getContentSummary(self._path(f"{self.place}/{kind}/{part}"))
        return told.getFileCount(), told.getLength()

    def read_texts(self, directory: str) -> Iterator[str]:
        """The text of each file in a directory of the tables: of small ones, as Spark keeps."""
        for name in self._names(directory):
            if not name.startswith("."):
                yield _read(self._files, self._path(f"{self.place}/{directory}/{name}")).decode()

    def mark_raw_removed(self) -> None:
        """Note that these tables are the only copy of records, before the first file goes."""
        mark = self._path(f"{self.place}/{_RAW_REMOVED}")
        if not self._files.exists(mark):
            self._files.create(mark, True).close()

    def remove_raw_file(self, address: str) -> bool:
        """Remove a file of the ledger that a batch took; False: it has gone already."""
        path = self._path(self._jvm.java.net.URI(address))
        return bool(path.getFileSystem(self._settings).delete(path, False))

    @property
    def is_only_copy(self) -> bool:
        """Whether files of the ledger were removed whose records these tables hold."""
        return bool(self._files.exists(self._path(f"{self.place}/{_RAW_REMOVED}")))

    def require_raw(self) -> None:
        """LedgerError where the ledger's files cannot make the tables again."""
        if self.is_only_copy:
            raise LedgerError(
                f"the tables at {self.place} cannot be rebuilt: they are the only copy of records"
                " whose files were removed (compact --remove-raw)"
            )

    def remove(self) -> None:
        """Remove the tables, and nothing else that may be at their place."""
        mark = self._path(f"{self.place}/{_BEING_REMOVED}")
        self._files.create(mark, True).close()
        for name in self._names(""):
            if name in {_COMMITS, _CHECKPOINT, BRONZE, JOURNEYS} or name.startswith(f"{SUMS}-"):
                self._files.delete(self._path(f"{self.place}/{name}"), True)
        self._files.delete(mark, False)

    def files_at(self, place: str) -> list[tuple[str, int]]:
        """Names and sizes of the files in a directory or at a URL, as Hadoop tells them."""
        path = self._path(_address(place))
        statuses = self._file_system(_address(place)).listStatus(path)
        return [(status.getPath().getName(), status.getLen()) for status in statuses]

    def text_at(self, place: str, name: str) -> str:
        """The text of a small file in a directory or at a URL; "" where it cannot be read."""
        path = self._path(f"{_address(place)}/{name}")
        try:
            return _read(self._file_system(_address(place)), path).decode("utf-8", "replace")
        except Py4JJavaError:
            return ""

    def put_text(self, place: str, name: str, text: str) -> None:
        """Write a small file under a new name; it appears whole."""
        files = self._file_system(_address(place))
        # Readers pass over names that begin with an underscore.
        draft = self._path(f"{_address(place)}/_{name}")
        with closing(files.create(draft, True)) as stream:
            stream.write(bytearray(text.encode()))
        if not files.rename(draft, self._path(f"{_address(place)}/{name}")):
            raise LedgerError(f"{name} could not be written at {place}: nothing was changed")

    def _rows_of(self, status: Any) -> int:
        parquet: Any = self._jvm.org.apache.parquet.hadoop
        source = parquet.util.HadoopInputFile.fromStatus(status, self._settings)
        with closing(parquet.ParquetFileReader.open(source)) as reader:
            return int(reader.getRecordCount())

    def _give_name(self, draft: Any, target: Any) -> bool:
        """Have a file under another name; False: something else has it."""
        if self._files.getUri().getScheme() == "file":
            # On a disk Hadoop's rename takes the place of what is there: both would have committed.
            try:
                os.link(draft.toUri().getPath(), target.toUri().getPath())
            except FileExistsError:
                return False
            except OSError:
                pass  # A disk that knows no links, as some that are mounted from elsewhere.
            else:
                return True
        return bool(self._files.rename(draft, target))

    def _file_system(self, place: str) -> Any:
        return self._path(place).getFileSystem(self._settings)

    def _commits(self) -> list[int]:
        found = (_COMMIT.fullmatch(name) for name in self._names(_COMMITS))
        return [int(match[1]) for match in found if match]

    def _read_commit(self, number: int) -> Snapshot:
        text = _read(self._files, self._path(f"{self.place}/{_COMMITS}/{number}.json"))
        try:
            told = json.loads(text)
            if told["format"] > FORMAT:
                return Snapshot(format=told["format"])
            parts = {kind: tuple(names) for kind, names in told.pop("parts").items()}
            return Snapshot(parts=parts, **told)
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"{self.place}/{_COMMITS}/{number}.json is no commit of these tables ({error}):"
                f" {REBUILD}"
            ) from None

    def _names(self, directory: str) -> list[str]:
        return [name for name, _ in self._listed(directory)]

    def _listed(self, directory: str) -> Iterator[tuple[str, int]]:
        path = self._path(f"{self.place}/{directory}" if directory else self.place)
        if not self._files.exists(path):
            return
        for status in self._files.listStatus(path):
            yield status.getPath().getName(), status.getModificationTime()


def _read(files: Any, path: Any) -> bytes:
    """The content of a small file of a Hadoop file system."""
    with closing(files.open(path)) as stream:
        return bytes(stream.readAllBytes())


def _now_ms() -> int:
    return int(time.time() * 1000)


def _address(place: str) -> str:
    """A directory or URL as Hadoop wants it: a path is a local one, whatever the default is."""
    if "://" in place or place.startswith("file:/"):
        return place.rstrip("/")
    return f"file:{Path(place).absolute()}"


def _literal(path: str) -> str:
    """A path as a pattern that means only itself."""
    return re.sub(r"([\\{}\[\]*?,])", r"\\\1", path)
