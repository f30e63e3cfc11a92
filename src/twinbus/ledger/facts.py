"""Which files are a ledger's, and the facts of one, read in one pass over its bytes.

Besides records a file holds lines of the operation `writer`; their word is in `state`:

    begin       first line of every file: number, previous, before, host, started_ms, interval_ms
    alive       every interval_ms while the process lives: lines of all its files so far, hash
    continued   last line: lines before it, hash; the writer continues in the next file
    ended       last line: lines before it, hash; the process ended in order
    closed      a person's word that the process `client` needs no further proof; why: `error`
    erased      a command rewrote the file `client`: `previous` and `hash` are its SHA-256 before
                and after

A `hash` is the SHA-256 of all bytes of the file before its line. `previous` is the hash of all that
this writer put into its previous file, but for that file's last line. `before` names other writers
whose files were there when the file began, as NAME:NUMBER with their last number.

Beside the files, `removed-<id>.json` names those that a command removes. It is written before the
first removal and kept for ever: a file that it names and that is there was not removed yet, or was
put back. A missing file that it does not name was deleted or not copied (`chain`).
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from twinbus.ledger.record import FILE_SUFFIX, OPEN_SUFFIX, WRITER, decode, encode

GZIP_SUFFIX: Final = ".gz"
"""Behind the name of an ended file that was compressed later: readers take it as it was."""

CLOSINGS: Final = frozenset({"continued", "ended"})
NOTES: Final = frozenset({"closed", "erased"})

_NOTE_FIELDS: Final = {
    "client": "client",
    "why": "error",
    "hash_before": "previous",
    "hash_after": "hash",
}
"""The field of a note's line for each attribute of a WriterNote."""

TABLES: Final = "_tables"
"""The directory of the tables in that of their ledger, unless another place is named."""

LINE_MAX: Final = 1 << 20
"""Longer lines are not of Twinbus: they are hashed, and not kept in memory."""

NOTE_VERSION: Final = 1
"""Of the notes of removed files."""

_SUFFIXES: Final = (FILE_SUFFIX, f"{FILE_SUFFIX}{OPEN_SUFFIX}", f"{FILE_SUFFIX}{GZIP_SUFFIX}")
_REMOVED: Final = re.compile(r"removed-[0-9a-f]+\.json")
_NUMBER_MAX: Final = 99_999
"""The highest number that a note has in a range: the ranges of a damaged note stay small."""

_TAIL_BYTES: Final = 1 << 16
"""Where the time of the last lines is looked for: lines of several threads have no strict order."""

_NAME: Final = re.compile(
    rf"(?P<process>.+)-(?P<number>\d{{5,9}}){re.escape(FILE_SUFFIX)}"
    rf"(?:{re.escape(OPEN_SUFFIX)}|{re.escape(GZIP_SUFFIX)})?"
)
_HEAD: Final = rb'^\{"v":\d+,"at_ms":(\d{1,15}),"operation":"'
_TIME: Final = re.compile(_HEAD, re.MULTILINE)
_WRITER_LINE: Final = re.compile(_HEAD + WRITER.encode() + rb'"[^\n]*\n', re.MULTILINE)
_PROCESS: Final = re.compile(_HEAD + rb'[^"]*","process":"([^"]*)"', re.MULTILINE)


@dataclass(frozen=True)
class WriterNote:
    """A line "closed" or "erased"."""

    state: str
    at_ms: int
    client: str
    """The process that is declared closed, or the stem of the file that was changed."""
    why: str = ""
    hash_before: str = ""
    hash_after: str = ""


@dataclass(frozen=True)
class FileFacts:
    """One file of a ledger. The defaults are those of a file without a single whole line."""

    name: str
    process: str = ""
    """The writer, by the file's name; by its lines where the name has no number."""
    number: int | None = None
    size_bytes: int = 0
    """Of the content, not compressed."""
    sha256: str = hashlib.sha256().hexdigest()
    """Of the whole content."""
    lines: int = 0
    """Whole lines, all of them."""
    last_ms: int | None = None
    begins: bool = False
    """Whether the first line is a begin line; False for earlier versions and damaged files."""
    previous: str | None = None
    before: tuple[str, ...] = ()
    interval_ms: int | None = None
    closing: str | None = None
    """ "continued" or "ended", by the last line; None without one."""
    link: str = ""
    """What the writer's next file must have as `previous`."""
    hash_matches: bool = True
    """Whether all hashes and counts in its lines match the bytes before them."""
    is_misplaced: bool = False
    """A first or last line is in the middle: something was put before or behind it."""
    is_torn: bool = False
    """The last line has no end."""
    foreign: str = ""
    """Another process than the name's that a line names: a copy under another name."""
    notes: tuple[WriterNote, ...] = ()

    @property
    def stem(self) -> str:
        return stem_of(self.name)

    @property
    def is_open(self) -> bool:
        return self.name.endswith(OPEN_SUFFIX)


def stem_of(name: str) -> str:
    """The name that a file has once it is ended: a stem is read once."""
    return name.removesuffix(OPEN_SUFFIX).removesuffix(GZIP_SUFFIX).removesuffix(FILE_SUFFIX)


def place_of(name: str) -> tuple[str, int] | None:
    """Writer and number of a file by its name; None: no writer names files so."""
    found = _NAME.fullmatch(name)
    if found is None or f"{int(found['number']):05d}" != found["number"]:
        # Other programs count, or write dates, with as many digits.
        return None
    return found["process"], int(found["number"])


def is_readable(path: str) -> bool:
    """Return whether a file is part of a ledger, by its path below the ledger's directory."""
    return "/" not in path and path[:1] not in {"_", "."} and path.endswith(_SUFFIXES)


def is_unread(path: str) -> bool:
    """Return whether a file looks like part of a ledger and is not read.

    Hidden files are drafts of running programs.
    """
    name = path.rpartition("/")[2]
    return FILE_SUFFIX in name and not name.startswith(".") and not is_readable(path)


def facts_of(name: str, content: Iterable[bytes]) -> FileFacts:
    """Read a file's content, in pieces of any size (large ones are faster)."""
    looking = _Looking(name)
    for piece in content:
        looking.take(piece)
    return looking.done()


class _Looking:
    """One pass over a file: `take` each piece, then `done`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._place = place_of(name)
        self._process = self._place[0].encode() if self._place else b""
        self._hash = hashlib.sha256()
        self._size = self._lines = 0
        self._rest = b""
        self._is_long = False
        self._last_ms: int | None = None
        self._begin: dict[str, Any] | None = None
        self._closing: dict[str, Any] | None = None
        self._matches = True
        self._is_misplaced = False
        self._foreign = b""
        self._notes: list[WriterNote] = []

    def take(self, piece: bytes) -> None:
        self._size += len(piece)
        data = self._rest + piece if self._rest else piece
        end = data.rfind(b"\n") + 1
        whole, self._rest = data[:end], data[end:]
        if whole:
            self._take_lines(whole)
            self._is_long = False
        if len(self._rest) > LINE_MAX:
            self._hash.update(self._rest)
            self._rest, self._is_long = b"", True

    def _take_lines(self, data: bytes) -> None:
        if self._closing is not None:
            # Something comes behind the last line.
            self._closing, self._is_misplaced = None, True
        count = data.count(b"\n")
        self._note_times(data)
        self._note_processes(data, count)
        at = 0
        if b'"operation":"writer"' in data:
            for found in _WRITER_LINE.finditer(data):
                self._hash.update(data[at : found.start()])
                at = found.start()
                before = self._lines + data.count(b"\n", 0, at)
                self._take_writer_line(found[0], before, is_last=found.end() == len(data))
        self._hash.update(data[at:])
        self._lines += count

    def _take_writer_line(self, line: bytes, before: int, *, is_last: bool) -> None:
        record = decode(line)
        if record is None:
            return
        state = record.get("state")
        if state == "begin":
            if before:
                self._is_misplaced = True
            else:
                self._begin = record
        elif state in NOTES:
            known = {name: record[field] for name, field in _NOTE_FIELDS.items() if field in record}
            self._notes.append(WriterNote(state, record["at_ms"], **{"client": "", **known}))
            return
        # A last line always has one: without it nothing vouches for the lines before.
        if "hash" in record or state in CLOSINGS:
            self._matches &= record.get("hash") == self._hash.hexdigest()
        if state in CLOSINGS:
            self._matches &= record.get("lines") == before
            if is_last:
                self._closing = record
            else:
                self._is_misplaced = True

    def _note_times(self, data: bytes) -> None:
        # From a line's beginning on: the pattern wants one.
        tail = data.find(b"\n", len(data) - _TAIL_BYTES - 1) + 1 if len(data) > _TAIL_BYTES else 0
        times = [int(found) for found in _TIME.findall(data, tail)]
        if times:
            self._last_ms = max(times)

    def _note_processes(self, data: bytes, count: int) -> None:
        if self._foreign or data.count(b'"process":"%b"' % self._process) == count:
            return
        for _, process in _PROCESS.findall(data):
            if self._place is None and not self._process:
                self._process = process
            if process != self._process:
                self._foreign = process
                return

    def done(self) -> FileFacts:
        """What was found, after the last piece."""
        is_torn = bool(self._rest) or self._is_long
        if is_torn and self._closing is not None:
            self._closing, self._is_misplaced = None, True
        self._hash.update(self._rest)
        begin, closing, sha256 = self._begin or {}, self._closing or {}, self._hash.hexdigest()
        number = self._place[1] if self._place else None
        process = self._process.decode("ascii", "replace")
        foreign = self._foreign.decode("ascii", "replace")
        if self._place is None and self._is_copy(process):
            foreign = foreign or process
        return FileFacts(
            name=self._name,
            process=process,
            number=number,
            size_bytes=self._size,
            sha256=sha256,
            lines=self._lines,
            last_ms=self._last_ms,
            begins=self._begin is not None,
            previous=begin.get("previous"),
            before=tuple(begin.get("before", "").split()),
            interval_ms=begin.get("interval_ms"),
            closing=closing.get("state"),
            link=closing.get("hash", sha256),
            hash_matches=self._matches and begin.get("number", number) == number,
            is_misplaced=self._is_misplaced,
            is_torn=is_torn,
            foreign=foreign,
            notes=tuple(self._notes),
        )

    def _is_copy(self, process: str) -> bool:
        """Whether a name that no writer gives is made of one that a writer gave."""
        numbered = re.compile(rf"{re.escape(process)}-\d{{5,9}}(?!\d).+")
        return self._begin is not None or bool(process and numbered.match(stem_of(self._name)))


def note_file(
    process: str, host: str, now_ms: int, notes: Sequence[WriterNote]
) -> tuple[str, bytes]:
    """Return name and content of a whole file with these notes, for a command that runs briefly.

    `process` is a new `process_name`. The file needs no `writer`, and can be put at a URL.
    """
    begin = {"state": "begin", "number": 0, "host": host, "started_ms": now_ms, "interval_ms": 0}
    lines = [begin]
    for note in notes:
        given = {field: getattr(note, name) or None for name, field in _NOTE_FIELDS.items()}
        lines.append({"state": note.state, **given})
    content = b"".join(encode(process, now_ms, WRITER, line) for line in lines)
    digest = hashlib.sha256(content).hexdigest()
    end = {"state": "ended", "lines": len(lines), "hash": digest}
    return f"{process}-00000{FILE_SUFFIX}", content + encode(process, now_ms, WRITER, end)


@dataclass(frozen=True)
class MissingFiles:
    """Files that a command removed from a ledger; `chain` finds the others that are missing."""

    removed: tuple[str, ...] = ()
    """Those that a note names."""
    unnoted: int = 0
    """Removals without a readable note: their files are not known."""

    def but(self, known: Collection[str]) -> MissingFiles:
        """This without files whose records are known from elsewhere."""
        ended = set(map(_ended, known))
        removed = tuple(name for name in self.removed if _ended(name) not in ended)
        return MissingFiles(removed, self.unnoted)

    def sentences(self) -> Iterator[str]:
        if self.removed:
            first, count = self.removed[0], len(self.removed)
            files = f"the file {first}" if count == 1 else f"{count:,} files ({first} and others)"
            yield f"records are missing: compact --remove-raw removed {files}"
        if self.unnoted:
            yield "records are missing: files of the ledger were removed, and no note says which"


def note_name() -> str:
    """A name for a note that no other note has."""
    return f"removed-{uuid.uuid4().hex[:12]}.json"


def is_note(name: str) -> bool:
    return _REMOVED.fullmatch(name) is not None


def new_note(names: Iterable[str]) -> str:
    """The text of a note that names these files: the numbers of each writer as ranges."""
    numbers: dict[str, list[int]] = {}
    others = []
    for name in sorted(set(names)):
        writer, number = place_of(name) or ("", -1)
        if 0 <= number <= _NUMBER_MAX and name == _name(writer, number):
            numbers.setdefault(writer, []).append(number)
        else:
            others.append(name)
    writers = {writer: _ranges(found) for writer, found in numbers.items()}
    return json.dumps({"v": NOTE_VERSION, "writers": writers, "others": others})


def noted_files(text: str) -> frozenset[str] | None:
    """The names in a note; None where it is damaged or of a later version."""
    try:
        note: Any = json.loads(text)
        if note["v"] != NOTE_VERSION:
            return None
        if any(last > _NUMBER_MAX for ranges in note["writers"].values() for _, last in ranges):
            return None
        numbered = (
            _name(writer, number)
            for writer, ranges in note["writers"].items()
            for first, last in ranges
            for number in range(first, last + 1)
        )
        return frozenset([*numbered, *map(str, note["others"])])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def missing_files(names: Iterable[str], notes: Iterable[str]) -> MissingFiles:
    """What was removed from a ledger with files of these names and notes of these texts."""
    there = set(map(_ended, names))
    read = [noted_files(text) for text in notes]
    noted: set[str] = set().union(*(found for found in read if found is not None))
    removed = tuple(sorted(name for name in noted if _ended(name) not in there))
    return MissingFiles(removed, unnoted=read.count(None))


def _ended(name: str) -> str:
    """The name that a file got when it was ended: it may have been compressed since."""
    return f"{stem_of(name)}{FILE_SUFFIX}"


def _name(writer: str, number: int) -> str:
    return f"{writer}-{number:05d}{FILE_SUFFIX}"


def _ranges(numbers: list[int]) -> list[list[int]]:
    """Numbers in their order as ranges, both ends included."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges
