"""Files of a directory and of a URL behave alike."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as pa_fs  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake.fs import DeltaStorageHandler

from tests.ledger_reading import read
from twinbus.ledger.record import LedgerError, encode
from twinbus.pipeline.store import place_files
from twinbus.pipeline.store.place_files import PlaceFiles


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


def test_the_rows_of_a_file_are_those_of_its_footer(files: PlaceFiles, tmp_path: Path) -> None:
    pq.write_table(pa.table({"number": [1, 2, 3]}), tmp_path / "three.parquet")
    assert files.rows("three.parquet") == 3


def test_what_cannot_be_read_is_one_line(files: PlaceFiles, tmp_path: Path) -> None:
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    for attempt in (
        lambda: files.content("nothing"),
        lambda: files.rows("torn.parquet"),
        lambda: PlaceFiles("nofs://host/ledger"),
    ):
        with pytest.raises(LedgerError, match=r"^\S+ cannot be used: [^\n]+$"):
            attempt()
