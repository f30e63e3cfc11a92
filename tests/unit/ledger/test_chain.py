"""What the files of a ledger show together: gaps, and missing, changed and doubled files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ledger_reading import is_whole, open_gaps, read
from twinbus.ledger import FileFacts, LedgerFindings, facts_of, verify
from twinbus.ledger.chain import FLUSH_MS, LATE_BEATS, MISSED_MAX
from twinbus.ledger.facts import LINE_MAX, WriterNote, note_file
from twinbus.ledger.files import BEFORE_MAX, HEARTBEAT_S, LedgerFiles
from twinbus.ledger.open_file import HOST
from twinbus.ledger.record import decode, encode

BEAT_MS = int(HEARTBEAT_S * 1000)
LATER_MS = 1 << 44
"""A time of report at which no writer lives any more."""


def line(process: str, message_id: str = "m", at_ms: int = 5) -> bytes:
    return encode(process, at_ms, "send", {"message_id": message_id})


def written(
    directory: Path, process: str = "web-1", *, files: int = 3, ends: bool = True
) -> list[Path]:
    """A writer's files with two records each, the last one ended or left as a kill leaves it."""
    some = LedgerFiles(directory, process)
    for number in range(files):
        some.append(line(process, f"{number}a") + line(process, f"{number}b"))
        if number + 1 < files:
            some.rotate()
    if ends:
        some.end()
    else:
        some.abandon()
    return sorted(directory.glob(f"{process}-*"))


def found(directory: Path, **more: Any) -> LedgerFindings:
    """What `verify` says of the files in a directory, long after the last line."""
    every = [facts_of(path.name, [path.read_bytes()]) for path in directory.glob("*.jsonl*")]
    return verify(every, now_ms=LATER_MS, **more)


def edit(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


def note(directory: Path, told: WriterNote) -> None:
    name, content = note_file(f"close-{told.at_ms}-{told.client}", HOST, told.at_ms, [told])
    (directory / name).write_bytes(content)


def test_a_writer_that_ended_in_order_leaves_no_finding(tmp_path: Path) -> None:
    paths = written(tmp_path)
    assert [path.name for path in paths] == [f"web-1-0000{number}.jsonl" for number in range(3)]
    assert found(tmp_path) == LedgerFindings()
    first, second, third = (facts_of(path.name, [path.read_bytes()]) for path in paths)
    assert (first.previous, second.previous, third.previous) == (None, first.link, second.link)
    assert [one.closing for one in (first, second, third)] == ["continued", "continued", "ended"]
    assert [(one.number, one.lines) for one in (first, second, third)] == [(0, 4), (1, 4), (2, 4)]
    assert (first.interval_ms, first.process) == (BEAT_MS, "web-1")
    assert first.hash_matches
    assert first.sha256 == hashlib.sha256(paths[0].read_bytes()).hexdigest()


def test_a_killed_writer_leaves_a_gap_of_one_interval(tmp_path: Path) -> None:
    last = written(tmp_path, ends=False)[-1]
    facts = facts_of(last.name, [last.read_bytes()])
    assert facts.last_ms is not None
    [gap] = found(tmp_path).gaps
    assert (gap.process, gap.from_ms, gap.closed_by) == ("web-1", facts.last_ms, None)
    assert gap.to_ms == facts.last_ms + BEAT_MS + FLUSH_MS
    assert "web-1 stopped without an end" in gap.sentence()
    assert not is_whole(found(tmp_path))
    # Adopted or not, it is the same.
    last.rename(last.with_suffix(""))
    assert [one.from_ms for one in found(tmp_path).gaps] == [gap.from_ms]


def test_who_writes_now_leaves_no_gap(tmp_path: Path) -> None:
    last = written(tmp_path, ends=False)[-1]
    facts = facts_of(last.name, [last.read_bytes()])
    assert facts.last_ms is not None
    late_ms = facts.last_ms + LATE_BEATS * BEAT_MS + FLUSH_MS
    assert not verify([facts], now_ms=late_ms).gaps
    assert verify([facts], now_ms=late_ms + 1).gaps
    assert not verify([facts], now_ms=late_ms + 1, alive={"web-1"}).gaps
    # A copy of its file, or a process that does not come to write.
    assert verify([facts], now_ms=LATER_MS, alive={"web-1"}).gaps
    assert verify([facts], now_ms=late_ms, dead={"web-1"}).gaps


@pytest.mark.parametrize("files", [1, 3])
def test_killed_at_any_byte_of_the_last_file_is_a_gap_and_never_a_changed_file(
    tmp_path: Path, files: int
) -> None:
    paths = written(tmp_path, files=files)
    others = [facts_of(path.name, [path.read_bytes()]) for path in paths[:-1]]
    whole = paths[-1].read_bytes()
    for size in range(len(whole)):
        facts = facts_of(paths[-1].name, [whole[:size]])
        shown = verify([*others, facts], now_ms=LATER_MS)
        first_line = whole.find(b"\n") + 1
        assert not shown.changed
        # A torn first line is set aside by every reader: that is a finding of its own.
        expected = 1 if size >= first_line or others or not size else 0
        assert len(shown.gaps) == expected, size
        assert is_whole(shown) == (not expected)


def test_the_next_file_begins_before_this_one_ends(tmp_path: Path) -> None:
    # Killed between the two: the first has no last line, and is named by the second.
    paths = written(tmp_path, files=2)
    whole = paths[0].read_bytes()
    footer = whole.rfind(b"\n", 0, -1) + 1
    for cut in (whole[:footer], whole):
        paths[0].unlink(missing_ok=True)
        (tmp_path / f"{paths[0].name}.open").write_bytes(cut)
        assert found(tmp_path) == LedgerFindings()
    # So a file that is continued and has no successor has lost it.
    paths[1].unlink()
    [gap] = found(tmp_path).gaps
    assert gap.to_ms is None
    assert "its next file is not there" in gap.sentence()


def test_a_missing_file_and_a_missing_writer_are_missed(tmp_path: Path) -> None:
    written(tmp_path, "web-1")
    written(tmp_path, "web-2")
    (tmp_path / "web-1-00001.jsonl").unlink()
    shown = found(tmp_path)
    assert shown == LedgerFindings(missing_files=("web-1-00001.jsonl",))
    assert "the ledger lacks 1 file (web-1-00001.jsonl)" in next(shown.sentences())
    for path in tmp_path.glob("web-1-*"):
        path.unlink()
    shown = found(tmp_path)
    assert shown == LedgerFindings(missing_writers=("web-1",))
    assert not is_whole(shown)
    closed = WriterNote("closed", 5, "web-1", "a test")
    carrier = FileFacts("cli-00000.jsonl", "cli", 0, lines=1, notes=(closed,))
    web_2 = [facts_of(path.name, [path.read_bytes()]) for path in tmp_path.glob("web-2-*")]
    assert is_whole(verify([*web_2, carrier], now_ms=LATER_MS))
    removed = [f"web-1-0000{number}.jsonl" for number in range(3)]
    assert found(tmp_path, removed=removed) == LedgerFindings()


def test_the_last_file_of_a_writer_is_missed_by_others_too(tmp_path: Path) -> None:
    *_, last = written(tmp_path, "web-1")
    written(tmp_path, "web-2")
    last.unlink()
    assert found(tmp_path) == LedgerFindings(missing_files=(last.name,))


def test_a_removed_file_is_no_gap(tmp_path: Path) -> None:
    *_, last = written(tmp_path)
    last.unlink()
    assert not found(tmp_path, removed=[last.name]).gaps


EDITS: dict[str, Callable[[bytes], bytes]] = {
    "a changed id": lambda whole: whole.replace(b'"0a"', b'"0c"'),
    "a removed line": lambda whole: whole.replace(line("web-1", "0a"), b""),
    "a doubled line": lambda whole: whole.replace(line("web-1", "0a"), 2 * line("web-1", "0a")),
    "swapped lines": lambda whole: whole.replace(
        line("web-1", "0a") + line("web-1", "0b"), line("web-1", "0b") + line("web-1", "0a")
    ),
    "no first line": lambda whole: whole[whole.find(b"\n") + 1 :],
    "no last line": lambda whole: whole[: whole.rfind(b"\n", 0, -1) + 1][:-1] + b" \n",
    "more behind its end": lambda whole: whole + line("web-1", "late"),
    "half a line behind its end": lambda whole: whole + line("web-1", "late")[:-9],
    "another file behind its end": lambda whole: whole + whole,
    "cut at a line": lambda whole: whole[: whole.find(b"\n", whole.find(b"\n") + 1) + 1],
    "emptied": lambda whole: b"",
}


@pytest.mark.parametrize("change", EDITS)
def test_a_careless_edit_is_noticed(tmp_path: Path, change: str) -> None:
    first, *_ = written(tmp_path, files=2)
    first.write_bytes(EDITS[change](first.read_bytes()))
    shown = found(tmp_path)
    assert list(shown.changed) == [first.name]
    assert not is_whole(shown)


def test_a_last_line_without_its_hash_is_noticed(tmp_path: Path) -> None:
    *_, last = written(tmp_path, files=2)
    edit(last, b'"hash"', b'"hush"')
    assert list(found(tmp_path).changed) == [last.name]


def test_a_killed_writers_file_is_verified_up_to_its_last_heartbeat(tmp_path: Path) -> None:
    now_s = 1_000.0
    some = LedgerFiles(tmp_path, "web-1", clock=lambda: now_s)
    some.append(line("web-1", "a"))
    assert some.beat() is None
    now_s += HEARTBEAT_S
    handle = some.beat()
    assert handle is not None
    os.close(handle)
    some.append(line("web-1", "b"))
    some.abandon()
    [path] = tmp_path.glob("*.open")
    assert not found(tmp_path).changed
    edit(path, b'"a"', b'"z"')
    assert list(found(tmp_path).changed) == [path.name]


def test_an_idle_writer_beats_once_an_interval_and_counts_its_lines(tmp_path: Path) -> None:
    now_s = 1_000.0
    some = LedgerFiles(tmp_path, "web-1", clock=lambda: now_s)
    assert some.beat() is None, "nothing was written yet"
    some.begin()
    for _ in range(10):
        now_s += HEARTBEAT_S / 2
        if (handle := some.beat()) is not None:
            os.close(handle)
    some.end()
    [path] = tmp_path.glob("*.jsonl")
    states = [one["state"] for one in map(decoded, path.read_bytes().splitlines())]
    assert states == ["begin", *["alive"] * 5, "ended"]
    alive = decoded(path.read_bytes().splitlines()[3])
    assert alive["lines"] == 3
    assert found(tmp_path) == LedgerFindings()


def decoded(text: bytes) -> dict[str, Any]:
    record = decode(text)
    assert record is not None
    return record


def test_of_two_files_of_one_stem_the_closed_or_longer_one_is_read(tmp_path: Path) -> None:
    first, *_ = written(tmp_path, files=2)
    whole = first.read_bytes()
    stale = tmp_path / f"{first.name}.open"
    stale.write_bytes(whole[:-100])
    shown = found(tmp_path)
    assert list(shown.refused) == [stale.name]
    assert is_whole(shown)
    assert [one["message_id"] for one in read(tmp_path)] == ["0a", "0b", "1a", "1b"]
    # The other way round: a copy that was adopted too early, then copied again.
    first.write_bytes(whole[:200])
    stale.write_bytes(whole[:-1])
    assert list(found(tmp_path).refused) == [first.name]


def test_a_copy_under_another_name_is_refused(tmp_path: Path) -> None:
    first, *_ = written(tmp_path, files=1)
    for name in ("web-1-00000-copy.jsonl", "web-9-00000.jsonl", "web-1-00001.jsonl"):
        copy = tmp_path / name
        copy.write_bytes(first.read_bytes())
        shown = found(tmp_path)
        assert list(shown.refused) == [name]
        assert is_whole(shown)
        assert len(list(read(tmp_path))) == 2
        copy.unlink()


def test_copies_of_an_earlier_versions_files_are_refused_too(tmp_path: Path) -> None:
    old = line("web-1", "a") + line("web-1", "b")
    (tmp_path / "web-1-00000.jsonl").write_bytes(old)
    (tmp_path / "web-1-00000-copy.jsonl").write_bytes(old)
    (tmp_path / "web-1-00000.jsonl.open").write_bytes(old[:-10])
    shown = found(tmp_path)
    assert sorted(shown.refused) == ["web-1-00000-copy.jsonl", "web-1-00000.jsonl.open"]
    assert shown.old_files == ("web-1-00000.jsonl",)
    assert "of an earlier version of Twinbus" in list(shown.sentences())[-1]
    assert is_whole(shown)


def test_a_person_can_close_a_gap_with_a_reason(tmp_path: Path) -> None:
    [path] = written(tmp_path, "web-1", files=1, ends=False)
    last_ms = facts_of(path.name, [path.read_bytes()]).last_ms or 0
    note(tmp_path, WriterNote("closed", last_ms - 3_600_000, "web-1", "an hour before it stopped"))
    assert open_gaps(found(tmp_path))
    note(tmp_path, WriterNote("closed", 4_000_000_000_000, "web-1", "ann: it was idle"))
    shown = found(tmp_path)
    [gap] = shown.gaps
    assert gap.closed_by == "ann: it was idle (2096-10-02 07:06:40 UTC)"
    assert is_whole(shown)
    assert "closed: ann: it was idle" in gap.sentence()


def test_a_file_that_a_command_rewrote_is_as_it_should_be_and_no_other(tmp_path: Path) -> None:
    first, *_ = written(tmp_path, files=2)
    whole = first.read_bytes()
    notes = []
    for gone in (line("web-1", "0a"), line("web-1", "0b")):
        before = hashlib.sha256(first.read_bytes()).hexdigest()
        edit(first, gone, b"")
        after = hashlib.sha256(first.read_bytes()).hexdigest()
        notes.append(WriterNote("erased", 5, first.stem, "", before, after))
    carrier = FileFacts("cli-1-00000.jsonl", "cli-1", 0, begins=True, closing="ended", lines=1)
    carrier = FileFacts(**{**vars(carrier), "sha256": "c", "notes": tuple(notes)})

    def shown() -> LedgerFindings:
        every = [facts_of(path.name, [path.read_bytes()]) for path in tmp_path.glob("web*")]
        return verify([*every, carrier], now_ms=LATER_MS)

    assert shown() == LedgerFindings()
    edit(first, b"begin", b"begun")
    assert list(shown().changed) == [first.name]
    first.write_bytes(whole)
    assert shown() == LedgerFindings(), "put back from a copy, it is what its writer wrote"


def test_a_writer_names_the_newest_others_and_no_more_than_a_bound(tmp_path: Path) -> None:
    for number in range(BEFORE_MAX + 5):
        path = tmp_path / f"other-{number:03}-00007.jsonl"
        path.write_bytes(line(f"other-{number:03}"))
        os.utime(path, (number, number))
    some = LedgerFiles(tmp_path, "web-1")
    some.begin()
    some.rotate()
    some.end()
    first, second = (
        facts_of(path.name, [path.read_bytes()]) for path in sorted(tmp_path.glob("web-1-*"))
    )
    assert len(first.before) == BEFORE_MAX
    assert first.before[0] == f"other-{BEFORE_MAX + 4}:7"
    # The next file names those that were left.
    assert sorted(second.before) == [f"other-00{number}:7" for number in range(5)]


def test_a_full_disk_in_the_middle_of_a_last_line_leaves_the_chain_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = LedgerFiles(tmp_path, "web-1")
    some.append(line("web-1", "a"))
    real_write = os.write

    def full(fd: int, data: bytes) -> int:
        if b'"continued"' in data:
            return real_write(fd, data[:20])
        if b'"begin"' not in data:
            raise OSError(28, "No space left on device")
        return real_write(fd, data)

    with monkeypatch.context() as patched:
        patched.setattr("twinbus.ledger.open_file.os.write", full)
        some.rotate()
    some.append(line("web-1", "b"))
    some.end()
    assert found(tmp_path) == LedgerFindings()


@given(st.data())
def test_facts_do_not_depend_on_how_the_content_is_cut(data: st.DataObject) -> None:
    content = b"".join(
        [
            encode("p", 7, "writer", {"state": "begin", "number": 0, "interval_ms": 9}),
            *(line("p", str(number), at_ms=number) for number in range(4)),
            data.draw(st.sampled_from([b"", b"\n", b"torn", line("q"), b"\xff\x00\n"])),
        ]
    )
    digest = hashlib.sha256(content).hexdigest()
    content += encode("p", 9, "writer", {"state": "ended", "lines": 5, "hash": digest})
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    in_pieces = facts_of("p-00000.jsonl", pieces)
    whole = facts_of("p-00000.jsonl", [content])
    # How much of the end is looked through for the time depends on the pieces.
    assert FileFacts(**{**vars(in_pieces), "last_ms": 0}) == FileFacts(
        **{**vars(whole), "last_ms": 0}
    )


def test_a_file_without_lines_is_not_kept_in_memory() -> None:
    def pieces() -> Iterable[bytes]:
        for _ in range(5):
            yield b"x" * LINE_MAX

    facts = facts_of("p-00000.jsonl", pieces())
    assert facts.sha256 == hashlib.sha256(b"x" * 5 * LINE_MAX).hexdigest()
    assert (facts.lines, facts.is_torn, facts.size_bytes) == (0, True, 5 * LINE_MAX)


def test_a_file_without_a_line_is_a_gap_unless_its_process_lives(tmp_path: Path) -> None:
    # A power cut leaves a name whose content was not on the disk yet.
    (tmp_path / "web-1-00000.jsonl").touch()
    (tmp_path / "web-2-00000.jsonl.open").touch()
    assert open_gaps(found(tmp_path, alive={"web-2"})) == ["web-1"]
    assert open_gaps(found(tmp_path)) == ["web-1", "web-2"]
    told = [*found(tmp_path).sentences()]
    assert "the file web-1-00000.jsonl is empty: records of web-1 may be missing" in told[0]
    note(tmp_path, WriterNote("closed", 1, "web-1", "a power cut at noon"))
    assert open_gaps(found(tmp_path)) == ["web-2"]


def test_numbers_and_times_of_foreign_files_cost_neither_memory_nor_the_report(
    tmp_path: Path,
) -> None:
    at_ms = 999_999_999_999_999
    # The name of a file of another program, with a date.
    (tmp_path / "export-20251009.jsonl").write_bytes(encode("export", 5, "send", {}))
    begin = {"state": "begin", "number": 0, "interval_ms": 10**14}
    (tmp_path / "web-1-00000.jsonl").write_bytes(
        encode("web-1", at_ms, "writer", {**begin, "before": "web-2:999999999"})
    )
    (tmp_path / "web-2-00000.jsonl.open").write_bytes(encode("web-2", 5, "writer", begin))
    findings = found(tmp_path)
    assert len(findings.missing_files) == MISSED_MAX
    assert {name.rpartition("-")[0] for name in findings.missing_files} == {"web-2"}
    assert any("999999999999999 ms (no time of this era)" in one for one in findings.sentences())
    # A clock that is years ahead does not make its writer live for years.
    now = verify(
        [facts_of(path.name, [path.read_bytes()]) for path in tmp_path.glob("web-1*")], now_ms=5
    )
    assert open_gaps(now) == ["web-1"]
    note(tmp_path, WriterNote("closed", 5, "web-1", "its clock was wrong"))
    assert open_gaps(found(tmp_path)) == []
