"""Files of a ledger that are missing: what a note names, and numbers that are not there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledger_reading import read
from twinbus.ledger import LedgerWriter
from twinbus.ledger.facts import (
    MissingFiles,
    is_note,
    missing_files,
    new_note,
    note_name,
    noted_files,
)

if TYPE_CHECKING:
    from pathlib import Path


def files(writer: str, *numbers: int) -> list[str]:
    return [f"{writer}-{number:05d}.jsonl" for number in numbers]


def test_a_noted_file_is_removed_once_it_is_not_there() -> None:
    note = new_note([*files("web-1", 0, 1, 2), "odd.jsonl"])
    assert missing_files([*files("web-1", 0, 1, 2), "odd.jsonl"], [note]) == MissingFiles()
    found = missing_files(files("web-1", 1, 3), [note])
    assert found == MissingFiles(removed=("odd.jsonl", "web-1-00000.jsonl", "web-1-00002.jsonl"))
    # Tables that took them still have their records.
    assert found.but({"odd.jsonl", *files("web-1", 0, 1, 2)}) == MissingFiles()
    assert list(found.but(files("web-1", 0, 1, 2)).sentences()) == [
        "records are missing: compact --remove-raw removed the file odd.jsonl"
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v":1}', '{"v":2,"writers":{},"others":[]}'])
def test_a_note_that_cannot_be_read_is_missed_too(text: str) -> None:
    found = missing_files(files("web-1", 0), [text, new_note(files("web-1", 1))])
    assert (found.removed, found.unnoted) == (("web-1-00001.jsonl",), 1)
    assert "no note says which" in list(found.sentences())[-1]


@given(st.sets(st.sampled_from([*files("a", *range(9)), *files("b-1", *range(9)), "x.jsonl"])))
def test_a_note_names_what_it_was_made_of(names: set[str]) -> None:
    assert noted_files(new_note(names)) == frozenset(names)


def test_a_note_is_small_and_no_file_of_records() -> None:
    name = note_name()
    assert is_note(name)
    assert not is_note(f"_{name}")
    assert ".jsonl" not in name
    assert json.loads(new_note(files("web-1", *range(90_000))))["writers"] == {
        "web-1": [[0, 89_999]]
    }


def test_a_writer_numbers_its_files_from_0(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path, process="web-1") as writer:
        writer.record("send", entity="orders")
    there = sorted(path.name for path in tmp_path.iterdir())
    assert missing_files(there, []) == MissingFiles()
    assert there == ["ledger.id", *files("web-1", 0)]


def test_a_reader_without_spark_says_what_is_missing(tmp_path: Path) -> None:
    for name in ("web-1-00002.jsonl", "web-1-00004.jsonl.open", "web-2-00001.jsonl", "x-9.jsonl"):
        (tmp_path / name).touch()
    # The last file of a writer that a note names is not the end of its numbers.
    (tmp_path / note_name()).write_text(new_note([*files("web-1", 0), *files("web-3", 1)]))
    found = read(tmp_path)
    assert found.missing.removed == ("web-1-00000.jsonl", "web-3-00001.jsonl")
    absent = (*files("web-1", 1, 3), *files("web-2", 0), *files("web-3", 0))
    assert found.findings.missing_files == absent
    assert any("the ledger lacks 4 files (web-1-0" in one for one in found.findings.sentences())
