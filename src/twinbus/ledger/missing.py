"""Which files of a ledger are missing: removed by a command, or gaps in the numbers of a writer.

    removed-<id>.json    names files that a command removes; written before the first removal

A writer numbers its files from 0 without a gap (`files`), so a number that is not there, and that
no such note names, is a file that was deleted or not copied. A note is kept for ever: a file
that it names and that is there was not removed yet, or was put back.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from twinbus.ledger.facts import stem_of
from twinbus.ledger.record import FILE_SUFFIX

NOTE_VERSION: Final = 1

_NOTE: Final = re.compile(r"removed-[0-9a-f]+\.json")
_NUMBERED: Final = re.compile(rf"(?P<writer>.+)-(?P<number>\d{{5}}){re.escape(FILE_SUFFIX)}")
"""A file as `files` names it. Five digits: other names of other programs may end with a number."""

_NUMBER_MAX: Final = 99_999


@dataclass(frozen=True)
class MissingFiles:
    """Files that were in a ledger and cannot be read there."""

    removed: tuple[str, ...] = ()
    """Those that a note names."""
    gaps: tuple[str, ...] = ()
    """Those that a writer must have written, and no note names."""
    unnoted: int = 0
    """Removals without a readable note: their files are not known."""

    def __bool__(self) -> bool:
        return bool(self.removed or self.gaps or self.unnoted)

    def but(self, known: Collection[str]) -> MissingFiles:
        """This without files whose records are known from elsewhere."""
        ended = set(map(_ended, known))
        return MissingFiles(
            tuple(name for name in self.removed if _ended(name) not in ended),
            tuple(name for name in self.gaps if name not in ended),
            self.unnoted,
        )

    def sentences(self) -> Iterator[str]:
        """A sentence for each kind."""
        if self.removed:
            yield f"records are missing: compact --remove-raw removed {_files(self.removed)}"
        if self.gaps:
            yield (
                f"records are missing: the ledger lacks {_files(self.gaps)}, and has later files of"
                " the same writer"
            )
        if self.unnoted:
            yield "records are missing: files of the ledger were removed, and no note says which"


def note_name() -> str:
    """A name for a note that no other note has."""
    return f"removed-{uuid.uuid4().hex[:12]}.json"


def is_note(name: str) -> bool:
    """Whether a file of a ledger is a note of removed files."""
    return _NOTE.fullmatch(name) is not None


def new_note(names: Iterable[str]) -> str:
    """The text of a note that names these files: the numbers of each writer as ranges."""
    numbers: dict[str, list[int]] = {}
    others = []
    for name in sorted(set(names)):
        found = _NUMBERED.fullmatch(name)
        if found is None:
            others.append(name)
        else:
            numbers.setdefault(found["writer"], []).append(int(found["number"]))
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
    """What is missing from a ledger with files of these names and notes of these texts."""
    there = set(map(_ended, names))
    read = [noted_files(text) for text in notes]
    noted: set[str] = set().union(*(found for found in read if found is not None))
    last: dict[str, int] = {}
    went = set(map(_ended, noted))
    for name in there | went:
        found = _NUMBERED.fullmatch(name)
        if found is not None:
            last[found["writer"]] = max(last.get(found["writer"], 0), int(found["number"]))
    written = {_name(writer, number) for writer in last for number in range(last[writer])}
    return MissingFiles(
        removed=tuple(sorted(name for name in noted if _ended(name) not in there)),
        gaps=tuple(sorted(written - went - there)),
        unnoted=read.count(None),
    )


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


def _files(names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return f"the file {names[0]}"
    return f"{len(names):,} files ({names[0]} and others)"
