"""Delta tables that change as one: what counts, compaction, and files of a place."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.fs as pa_fs  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler

from tests.ledger_reading import read
from tests.unit.pipeline.store import lake_writer
from tests.unit.pipeline.store.lake_writer import (
    add,
    both,
    check_two_processes,
    ids_at,
    lake_at,
    write_file,
)
from twinbus.ledger.record import LedgerError, encode
from twinbus.pipeline.store import lake, place_files
from twinbus.pipeline.store.compaction import (
    LARGE_BYTES,
    SMALL_FILES_MAX,
    TINY_BYTES,
    note_removal,
    pays,
    require_raw,
)
from twinbus.pipeline.store.lake import CommitConflict, DataFile, Lake, Snapshot, TableChange
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.store.stream import open_store, tables_place
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS

POINTS = ("records written", "sums written", "records committed", "sums committed", "published")
DAY_S = 86_400


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Tables of one batch."""
    add(tmp_path, Snapshot(), "0-a", ["1", "2"])
    return tmp_path


def test_tables_are_what_the_newest_set_names(place: Path) -> None:
    first = lake_at(place).latest()
    assert (first.number, first.batch, first.records) == (0, 0, 2)
    second = add(place, first, "1-a", ["3"])
    assert lake_at(place).latest() == second
    assert ids_at(place) == both("1", "2", "3")
    assert ids_at(place, first) == both("1", "2")
    assert lake_at(place).taken() == {"0-a.jsonl": 0, "1-a.jsonl": 1}


@pytest.mark.parametrize("point", POINTS)
def test_a_batch_that_is_killed_at_any_point_counts_whole_or_not_at_all(
    place: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def deadly(step: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapped(*given: Any) -> Any:
            done = step(*given)
            if name.format(*given) == point:
                raise KeyboardInterrupt
            return done

        return wrapped

    before = lake_at(place).latest()
    with monkeypatch.context() as patch:
        patch.setattr(lake_writer, "write_file", deadly(write_file, "{1} written"))
        patch.setattr(Lake, "_advance", deadly(Lake._advance, "{1} committed"))
        patch.setattr(Lake, "_append", deadly(Lake._append, "published"))
        with pytest.raises(KeyboardInterrupt):
            add(place, before, "1-a", ["3"])
    is_published = point == "published"
    assert ids_at(place) == (both("1", "2", "3") if is_published else both("1", "2"))
    # The one that comes after it looks first, and does again what does not count.
    if "1-a.jsonl" not in lake_at(place).taken():
        add(place, lake_at(place).latest(), "1-b", ["3"])
    assert ids_at(place) == both("1", "2", "3")
    assert lake_at(place).latest().number == 1


def test_versions_that_no_set_names_are_undone_by_the_next_batch(place: Path) -> None:
    before = lake_at(place).latest()
    [old] = lake_at(place).files("records", before)
    new = write_file(place, "records", "0-c", ["1", "2"])
    # A compaction that died before its set, and a batch that died after it.
    lake_at(place)._advance("records", before, TableChange([new], [old]))
    late = write_file(place, "sums", "1-x", ["lost"])
    lake_at(place)._advance("sums", before, TableChange([late]))
    assert ids_at(place) == both("1", "2")
    add(place, before, "1-a", ["3"])
    assert ids_at(place) == both("1", "2", "3")
    assert old in lake_at(place).files("records", lake_at(place).latest())


def test_of_two_that_commit_at_once_one_wins(place: Path) -> None:
    before = lake_at(place).latest()
    winner = add(place, before, "1-a", ["3"])
    with pytest.raises(CommitConflict):
        add(place, before, "1-b", ["4"])
    assert lake_at(place).latest() == winner
    # The loser's versions are there, and count as little as its files.
    assert ids_at(place) == both("1", "2", "3")
    add(place, winner, "2-b", ["4"])
    assert ids_at(place) == both("1", "2", "3", "4")


def test_what_another_has_replaced_is_not_replaced_again(place: Path) -> None:
    before = lake_at(place).latest()
    old = lake_at(place).files("records", before)
    new = write_file(place, "records", "0-b", ["1", "2"])
    after = lake_at(place).publish(before, before, {"records": TableChange([new], old)})
    with pytest.raises(CommitConflict, match="has been replaced"):
        lake_at(place).publish(after, after, {"records": TableChange([], old)})


def test_processes_that_commit_beside_each_other_lose_and_double_nothing(tmp_path: Path) -> None:
    check_two_processes(tmp_path, 6)


def test_tables_can_be_moved_and_copied(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("of a, [b] {c}")
    copy, moved = elsewhere / "cöpy", elsewhere / "moved"
    shutil.copytree(place, copy)
    add(copy, lake_at(copy).latest(), "1-a", ["3"])
    copy.rename(moved)
    assert ids_at(moved) == both("1", "2", "3")
    add(moved, lake_at(moved).latest(), "2-a", ["4"])
    assert ids_at(moved) == both("1", "2", "3", "4")
    assert ids_at(place) == both("1", "2")


def test_many_sets_stay_few_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "SET_FILES_MAX", 4)
    for number in range(1, 9):
        add(place, lake_at(place).latest(), f"{number}-a", [str(number + 2)])
    assert len(DeltaTable(str(place / "sets")).file_uris()) <= 4
    assert len(lake_at(place).taken()) == 9
    assert lake_at(place).latest().number == 8


def test_a_sweep_removes_what_no_set_of_the_last_day_names(tmp_path: Path) -> None:
    before_s = time.time() - 3 * DAY_S

    def parts() -> set[str]:
        return {path.parent.name for path in (tmp_path / "records").glob("*/*.parquet")}

    def replace_records(before: Snapshot, part: str) -> Snapshot:
        new, old = write_file(tmp_path, "records", part, ["1"]), lake_at(tmp_path).files
        change = TableChange([new], old("records", before))
        return lake_at(tmp_path).publish(before, before, {"records": change})

    with mock.patch.object(time, "time", return_value=before_s):
        first = replace_records(add(tmp_path, Snapshot(), "0-a", ["1"]), "0-b")
    write_file(tmp_path, "records", "remains", ["9"])
    write_file(tmp_path, "records", "killed/_temporary/0", ["9"])
    for path in tmp_path.glob("*/*/*.parquet"):
        (path.parent / ".checksum.crc").touch()
        os.utime(path, (before_s, before_s))
    last = replace_records(first, "0-c")
    write_file(tmp_path, "records", "being-written", ["9"])
    lake_at(tmp_path).sweep()
    # 0-a was replaced days ago; 0-b is named by the set that was current until now.
    assert parts() == {"0-b", "0-c", "being-written"}
    for part in (tmp_path / "records").iterdir():
        os.utime(part, (time.time() - 2 * DAY_S,) * 2)
    lake_at(tmp_path).sweep()
    left = {part.name for part in (tmp_path / "records").iterdir()}
    assert left == {"_delta_log", "0-b", "0-c", "being-written"}
    assert lake_at(tmp_path).latest() == last
    assert (ids_at(tmp_path, first), ids_at(tmp_path)) == (both("1"), both("1"))
    # What comes after a sweep finds the versions that the sweep has added.
    add(tmp_path, last, "1-a", ["3"])
    assert ids_at(tmp_path) == both("1", "3")


def test_what_was_removed_can_go_at_once(place: Path) -> None:
    before = lake_at(place).latest()
    old = lake_at(place).files("records", before)
    new = write_file(place, "records", "0-b", ["1"])
    lake_at(place).publish(before, before, {"records": TableChange([new], old)})
    write_file(place, "records", "being-written", ["9"])
    lake_at(place).sweep(keep_h=0)
    left = {path.parent.name for path in (place / "records").glob("*/*.parquet")}
    assert left == {"0-b", "being-written"}


def test_tables_that_cannot_be_used_are_told_in_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(lake, "FORMAT", lake.FORMAT - 1)
        with pytest.raises(
            LedgerError, match=r"have format 6, and this .* reads format 5: .* rebuild them"
        ):
            lake_at(place).latest()
    current = lake_at(place).latest()
    shutil.rmtree(place / "records")
    with pytest.raises(LedgerError) as caught:
        lake_at(place).files("records", current)
    [line] = str(caught.value).splitlines()
    assert line.startswith(f"the table records at {place} cannot be used (")
    assert line.endswith("or rebuild them (twinbus ledger rebuild LEDGER)")
    with pytest.raises(LedgerError, match="reads % in a path as an escape"):
        lake_at(place / "a%20b").latest()


@pytest.mark.parametrize("name", ["../other/app.jsonl", "/etc/app.jsonl", "..", ""])
def test_a_set_cannot_name_a_file_outside_the_ledger(place: Path, name: str) -> None:
    """`compact --remove-raw` deletes the files that sets name."""
    other = lake_at(place / "other")
    other.publish(Snapshot(), Snapshot(batch=0), {}, {name: ""})
    with pytest.raises(LedgerError, match="is not the name of a ledger file"):
        other.taken()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger whose tables are of a version with other columns."""
    (tmp_path / "p-00000.jsonl").touch()
    store = TableStore(None, tables_place(tmp_path))
    store.lake.publish(Snapshot(), Snapshot(gold="of another version"), {}, {"p-00000.jsonl": ""})
    return tmp_path


def test_other_columns_are_to_be_rebuilt_only_where_that_can_be_done(ledger: Path) -> None:
    with pytest.raises(LedgerError, match=r"have other columns: rebuild them \([^\n]+$"):
        open_store(None, ledger)
    TableStore(None, tables_place(ledger)).mark_raw_removed()
    assert "have other columns, and are the only copy" in refusal(ledger)


def refusal(ledger: Path) -> str:
    with pytest.raises(LedgerError) as told:
        open_store(None, ledger)
    assert "rebuild" not in str(told.value)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_tables_whose_files_were_removed_with_other_tables_are_kept(ledger: Path) -> None:
    (ledger / "p-00001.jsonl").touch()
    here, other = (TableStore(None, tables_place(ledger, one)) for one in (None, ledger / "more"))
    other.lake.publish(Snapshot(), Snapshot(), {}, {"p-00000.jsonl": ""})
    require_raw(here, str(ledger))
    note_removal(other, str(ledger), {"p-00000.jsonl": ""})
    # Noted, and not gone yet.
    require_raw(here, str(ledger))
    (ledger / "p-00000.jsonl").unlink()
    with pytest.raises(LedgerError, match="cannot be rebuilt: they are the only copy"):
        require_raw(here, str(ledger))


MANY = SMALL_FILES_MAX + 1


@pytest.mark.parametrize("table", [BRONZE, JOURNEYS])
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1_000] * MANY, True),
        ([1_000] * SMALL_FILES_MAX, False),
        # These would not become much fewer.
        ([TINY_BYTES] * MANY, False),
        # Large files are left alone, however many there are.
        ([LARGE_BYTES] * MANY, False),
        ([*[LARGE_BYTES] * MANY, *[1_000] * MANY], True),
    ],
)
def test_compaction_pays_with_many_tiny_files(table: str, sizes: list[int], expected: bool) -> None:
    files = tuple(DataFile(str(number), size, 1, 0) for number, size in enumerate(sizes))
    store: Any = mock.Mock()
    store.lake.files = lambda asked, snapshot: files if asked == table else ()
    assert pays(store, Snapshot()) is expected


def as_url(place: str) -> tuple[object, str]:
    """The file system of delta-rs, as a URL has it, for a directory."""
    path = place.removeprefix("file:")
    return pa_fs.PyFileSystem(DeltaStorageHandler(f"file://{path}")), ""


@pytest.fixture(params=["directory", "url"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> PlaceFiles:
    if request.param == "directory":
        return PlaceFiles(str(tmp_path))
    with mock.patch.object(place_files, "_opened", as_url):
        return PlaceFiles(str(tmp_path))


def test_a_file_appears_whole_and_is_replaced_and_removed(
    files: PlaceFiles, tmp_path: Path
) -> None:
    files.put("note", b"one")
    files.put("note", b"two, longer")
    files.put("deep/er/note", b"three")
    assert files.content("note") == b"two, longer"
    assert files.content("deep/er/note") == b"three"
    assert [(file.name, file.size_bytes) for file in files.found()] == [("note", 11)]
    assert abs(files.found()[0].modified_ms - (tmp_path / "note").stat().st_mtime * 1000) <= 1000
    assert sorted(files.names()) == ["deep", "note"]
    assert files.names("deep") == ["er"]
    assert [files.exists(name) for name in ("note", "deep", "other")] == [True, True, False]
    assert (files.remove("note"), files.remove("note"), files.remove("deep")) == (True, False, True)
    # An object store has no directories, so an empty one may stay on a disk.
    assert files.found() == files.found("deep/er") == []
    assert files.names("nowhere") == []


def test_a_draft_that_a_kill_left_is_no_file_of_the_ledger(
    files: PlaceFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = encode("app", 0, "send", {"message_id": "2"})
    for number in range(3):
        files.put(f"app-{number:05d}.jsonl", encode("app", 0, "send", {"message_id": number}))

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    # The step before the draft gets the name of the file.
    monkeypatch.setattr(PlaceFiles, "_remove_checksum", killed)
    with pytest.raises(KeyboardInterrupt):
        files.put("app-00002.jsonl", line)
    assert sorted(files.names()) == [f"app-{number:05d}.jsonl" for number in range(3)]
    reading = read(tmp_path)
    assert not reading.missing.removed
    assert len(list(reading)) == 3


def test_checksums_of_hadoop_are_hidden_and_go_with_their_file(
    files: PlaceFiles, tmp_path: Path
) -> None:
    for name in ("kept", "gone"):
        files.put(name, b"x")
        (tmp_path / f".{name}.crc").write_bytes(b"crc")
    assert sorted(files.names()) == ["gone", "kept"]
    files.put("kept", b"another")
    files.remove("gone")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_rows_and_bounds_of_a_file_are_those_of_its_footer(
    files: PlaceFiles, tmp_path: Path
) -> None:
    rows = pa.table({"number": [3, None, 1], "id": ["b", "a", "c"], "none": pa.nulls(3, "int64")})
    pq.write_table(rows, tmp_path / "three.parquet", row_group_size=2)
    bounds = files.footer("three.parquet", {"number", "none", "missing"})
    assert bounds == (3, {"number": (1, 3)})


def test_the_log_has_the_bounds_of_days_and_times_and_of_no_id(tmp_path: Path) -> None:
    kinds = {"id": "string", "day": "date", "at_ms": "long", "size": "long"}
    columns = [
        {"name": name, "type": kind, "nullable": False, "metadata": {}}
        for name, kind in kinds.items()
    ]
    schemas = {"records": json.dumps({"type": "struct", "fields": columns})}
    first, last = date(2026, 11, 5), date(2026, 11, 6)
    ids, none = ["secret-1", "secret-2"], pa.nulls(2, "int64")
    rows = pa.table({"id": ids, "day": [first, last], "at_ms": [7, 9], "size": none})
    (tmp_path / "records").mkdir()
    pq.write_table(rows, tmp_path / "records" / "0.parquet")
    count, bounds = PlaceFiles(str(tmp_path)).footer("records/0.parquet", lake.BOUNDED)
    size = (tmp_path / "records" / "0.parquet").stat().st_size
    shutil.copy(tmp_path / "records" / "0.parquet", tmp_path / "records" / "1.parquet")
    # The second file states no bounds.
    written = DataFile("0.parquet", size, count, 0, bounds), DataFile("1.parquet", size, count, 0)
    tables = Lake(str(tmp_path), schemas)
    snapshot = tables.publish(Snapshot(), Snapshot(), {"records": TableChange(written)})
    table = DeltaTable(str(tmp_path / "records"))
    by_path = {one["path"]: one for one in pa.table(table.get_add_actions()).to_pylist()}
    assert by_path["0.parquet"]["min"] == {"day": first, "at_ms": 7}
    assert by_path["0.parquet"]["max"] == {"day": last, "at_ms": 9}
    # As another process reads it, and writes it again if it must restore the file.
    read_back = Lake(str(tmp_path), schemas).files("records", snapshot)
    assert {"day": (first, last), "at_ms": (7, 9)} in [one.bounds for one in read_back]
    assert not any(b"secret" in log.read_bytes() for log in tmp_path.rglob("*.json"))
    # Delta-rs must hide no row from those who read its dataset, whatever the columns hold.
    records = table.to_pyarrow_dataset()
    for asked in (pc.field("id") == "secret-1", pc.field("at_ms") == 7, pc.field("day") == first):
        assert records.to_table(filter=asked).num_rows == 2
    assert records.to_table(filter=pc.field("size").is_null()).num_rows == 4
    assert table.metadata().configuration["delta.enableDeletionVectors"] == "false"


def test_old_log_entries_go_when_no_set_needs_them(place: Path) -> None:
    """A table that did not change since stays at its version, whatever came after it."""
    log = place / "records" / "_delta_log"
    first = lake_at(place).latest()
    late = write_file(place, "records", "dead", ["lost"])
    for number in range(3):
        # Processes that died before their sets.
        lake_at(place)._advance("records", first, TableChange([late][: number % 2]))
    last = add(place, first, "1-a", ["2"])

    def entries() -> set[int]:
        return {int(path.name[:20]) for path in log.glob("0*") if path.suffix == ".json"}

    lake_at(place).sweep()
    before = entries()
    assert min(before) == 0
    old_s = time.time() - 8 * DAY_S
    # Commits that were killed; the second one may still be under way.
    drafts = [log / ".old.draft", log / ".new.draft"]
    drafts[0].touch()
    for path in log.iterdir():
        os.utime(path, (old_s, old_s))
    drafts[1].touch()
    lake_at(place).sweep()
    assert [path.exists() for path in drafts] == [False, True]
    # The first set is of the last day: its version is needed, by a checkpoint or its entries.
    assert min(entries()) == first.versions["records"]
    assert (ids_at(place, first), ids_at(place)) == (both("1", "2"), both("1", "2", "2"))
    add(place, last, "2-a", ["3"])
    assert ids_at(place) == both("1", "2", "2", "3")


def test_streams_skip_a_change_that_keeps_all_rows(place: Path) -> None:
    tables = lake_at(place)
    before = tables.latest()
    # A process died after its version of the table: its file goes again, which is a change.
    left = write_file(place, "records", "1-dead", ["9"])
    changes = {"records": TableChange([left])}
    with pytest.raises(KeyboardInterrupt), mock.patch.object(Lake, "_append", _killed):
        tables.publish(before, before, changes)
    merged = write_file(place, "records", "1-merged", ["1", "2"])
    old = tables.files("records", before)
    tables.publish(before, before, {"records": TableChange([merged], old, same_rows=True)})
    newest = max((place / "records" / "_delta_log").glob("*.json"))
    assert DeltaTable(str(place / "records")).history(1)[0]["twinbus"] == "compact"
    lines = map(json.loads, newest.read_text().splitlines())
    actions = [line[kind] for line in lines for kind in ("add", "remove") if kind in line]
    assert {one["path"]: one["dataChange"] for one in actions} == {
        merged.path: False,
        old[0].path: False,
        left.path: True,
    }


def test_tables_of_an_earlier_version_get_columns_and_tables_that_came_later(place: Path) -> None:
    """They may be the only copy, so they are not to be rebuilt."""
    new = {"name": "file", "type": "string", "nullable": True, "metadata": {}}
    wider = json.dumps({"type": "struct", "fields": [lake_writer.COLUMN, new]})
    later = Lake(str(place), {**lake_writer.SCHEMAS, "records": wider, "lines": wider})
    before = later.latest()
    assert before.versions.keys() == {"records", "sums"}
    later.sweep()
    row = {"id": "3", "file": "1-a.jsonl"}
    changes = {
        table: TableChange([later.write_rows(table, "1-a/0.parquet", [row])])
        for table in ("records", "lines")
    }
    after = later.publish(before, before, changes, {"1-a.jsonl": ""})
    assert after == Lake(str(place), {**lake_writer.SCHEMAS, "lines": wider}).latest()
    for table, ids in {"records": ["1", "2", "3"], "lines": ["3"]}.items():
        version = after.versions[table]
        rows = DeltaTable(str(place / table), version=version).to_pyarrow_table().to_pylist()
        assert sorted(one["id"] for one in rows) == ids
        assert [one["file"] for one in rows if one["id"] == "3"] == ["1-a.jsonl"]
        assert later.find(table, after, "id", "3") == [row]
    # An earlier version still reads and writes what it knows.
    assert ids_at(place) == {"records": ["1", "2", "3"], "sums": ["1", "2"]}
    add(place, lake_at(place).latest(), "2-a", ["4"])
    assert ids_at(place) == {"records": ["1", "2", "3", "4"], "sums": ["1", "2", "4"]}
    assert later.latest().number == 2


def _killed(*given: object) -> None:
    raise KeyboardInterrupt


def test_what_cannot_be_read_is_one_line(files: PlaceFiles, tmp_path: Path) -> None:
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    for attempt in (
        lambda: files.content("nothing"),
        lambda: files.footer("torn.parquet", ()),
        lambda: PlaceFiles("nofs://host/ledger"),
    ):
        with pytest.raises(LedgerError, match=r"^\S+ cannot be used: [^\n]+$"):
            attempt()
