"""Random tamperings with a ledger: a line or a file dropped, changed, swapped or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random, SystemRandom
from typing import Final

import pytest

from twinbus.ledger import LedgerFindings, facts_of, verify
from twinbus.ledger.files import LedgerFiles
from twinbus.ledger.record import encode

LATER_MS = 1 << 44
"""A time of report at which no writer lives any more."""

WRITERS = 3
FILES = 3
LINES = 6

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of writers that ran at the same time and ended in order."""
    directory = tmp_path_factory.mktemp("ledger")
    writers = [LedgerFiles(directory, f"web-{number}") for number in range(WRITERS)]
    for file in range(FILES):
        for writer, some in enumerate(writers):
            for number in range(LINES):
                fields = {"message_id": f"{writer}-{file}-{number}"}
                some.append(encode(f"web-{writer}", 5, "send", fields))
            if file + 1 < FILES:
                some.rotate()
    for some in writers:
        some.end()
    return {path.name: path.read_bytes() for path in directory.glob("*.jsonl")}


def found(files: Mapping[str, bytes]) -> LedgerFindings:
    return verify([facts_of(name, [content]) for name, content in files.items()], now_ms=LATER_MS)


def _of_lines(change: Callable[[Random, list[bytes]], None]) -> Callable[[Random, Files], None]:
    """A tampering with the lines of one file."""

    def tamper(rng: Random, files: Files) -> None:
        name = rng.choice(sorted(files))
        lines = files[name].splitlines(keepends=True)
        change(rng, lines)
        files[name] = b"".join(lines)

    return tamper


def _drop(rng: Random, lines: list[bytes]) -> None:
    """Any line but one: a writer that is killed between two files leaves no line "continued"."""
    lines.remove(rng.choice([line for line in lines if b'"continued"' not in line]))


def _swap(rng: Random, lines: list[bytes]) -> None:
    one, other = rng.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]


def _double(rng: Random, lines: list[bytes]) -> None:
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))


def _drop_file(rng: Random, files: Files) -> None:
    del files[rng.choice(sorted(files))]


def _change_file(rng: Random, files: Files) -> None:
    """Another value of one byte, anywhere but in the time of the last line: no hash covers it."""
    name = rng.choice(sorted(files))
    content = bytearray(files[name])
    last = content.rfind(b"\n", 0, -1) + 1
    time = range(content.index(b'"at_ms":', last), content.index(b',"operation"', last))
    places = [place for place in range(len(content)) if place not in time]
    content[rng.choice(places)] ^= rng.randrange(1, 256)
    files[name] = bytes(content)


def _change_line(rng: Random, lines: list[bytes]) -> None:
    """Another id in a record."""
    index = rng.choice([n for n, line in enumerate(lines) if b'"message_id":"' in line])
    lines[index] = lines[index].replace(b'"message_id":"', b'"message_id":"x')


def _swap_files(rng: Random, files: Files) -> None:
    one, other = rng.sample(sorted(files), 2)
    files[one], files[other] = files[other], files[one]


def _double_file(rng: Random, files: Files) -> None:
    """A copy, under a name that the same or another writer could have given."""
    content = files[rng.choice(sorted(files))]
    files[f"web-{rng.randrange(WRITERS + 2)}-{FILES + rng.randrange(3):05}.jsonl"] = content


TAMPERINGS: Final[dict[str, Callable[[Random, Files], None]]] = {
    "drop a line": _of_lines(_drop),
    "change a line": _of_lines(_change_line),
    "swap lines": _of_lines(_swap),
    "double a line": _of_lines(_double),
    "drop a file": _drop_file,
    "change a file": _change_file,
    "swap files": _swap_files,
    "double a file": _double_file,
}


def unnoticed(whole: Files, rng: Random, count: int) -> Counter[str]:
    """How many of so many tamperings `verify` says nothing about, by kind."""
    missed: Counter[str] = Counter()
    for number in range(count):
        kind = list(TAMPERINGS)[number % len(TAMPERINGS)]
        files = dict(whole)
        TAMPERINGS[kind](rng, files)
        assert files != whole
        missed[kind] += found(files) == LedgerFindings()
    return +missed


def test_each_of_a_thousand_random_tamperings_is_noticed(whole: Files) -> None:
    assert found(whole) == LedgerFindings()
    assert unnoticed(whole, Random(1), 1_000) == Counter()


@pytest.mark.soak
def test_each_of_many_new_tamperings_is_noticed(whole: Files) -> None:
    seed = SystemRandom().randrange(1 << 31)
    assert unnoticed(whole, Random(seed), 20_000) == Counter(), f"seed {seed}"
