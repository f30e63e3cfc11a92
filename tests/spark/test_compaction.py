"""Upkeep of the tables: compaction, retention, erasure."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.spark.kept import write_lines
from tests.spark.ledgers import Line, came_out, completed, diverted, line, moved, received, sent
from twinbus.ledger.record import WRITER, LedgerError
from twinbus.pipeline.core.mentions import written_id
from twinbus.pipeline.core.rules import is_erased_id
from twinbus.pipeline.reports.conservation import conservation_report
from twinbus.pipeline.reports.documents import ReportRequest, ReportVerdict
from twinbus.pipeline.store import compaction, removal
from twinbus.pipeline.store.compaction import compact, remove_raw
from twinbus.pipeline.store.current import current_tables
from twinbus.pipeline.store.increment import totals
from twinbus.pipeline.store.lake import DataFile, Snapshot, TableChange
from twinbus.pipeline.store.lineage import show
from twinbus.pipeline.store.place_files import PlaceFiles
from twinbus.pipeline.store.quarantine import rows_of_lines
from twinbus.pipeline.store.removal import _new_id, _remove_lines, erase, retain
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.store.stream import open_store, rebuild, update
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS, NOTABLE, STATES, SUMS, kept_tables
from twinbus.pipeline.tables.journeys import merged
from twinbus.pipeline.tables.quarantine import TEXT_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAY_S = 86_400
FIRST_DAY = date(2025, 10, 9)

BATCHES: list[list[Line]] = [
    # A message whose journey is in two batches, one that is complete, one that stays open.
    [diverted("a"), sent("b"), received("b", 1), diverted("open")],
    [
        *(came_out("a", 9), *moved("a", 0, 10)[2:], sent("t", 5, entity="news")),
        *(received("t", 6, entity="news/Subscriptions/s"), sent("c", 2 * DAY_S)),
    ],
]


@pytest.fixture
def ledger(spark: SparkSession, tmp_path: Path) -> Path:
    """A ledger whose tables have a part for each of two batches."""
    place = tmp_path / "ledger"
    place.mkdir()
    for number, lines in enumerate(BATCHES):
        write(place, f"app-{number}", lines)
        update(spark, place)
    return place


def write(place: Path, name: str, lines: list[Line]) -> None:
    told = ({key: value for key, value in one.items() if value is not None} for one in lines)
    (place / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))


def contents(store: TableStore) -> dict[str, list[str]]:
    """All that the tables say, in an order of its own."""
    store, snapshot = store.for_few(), store.latest()
    records, rows = store.read(BRONZE, snapshot), store.read(JOURNEYS, snapshot)
    sums = (
        totals(store, snapshot, table).select(
            F.lit(table.name), F.to_json(F.struct(*table.schema.fieldNames()))
        )
        for table in kept_tables()
    )
    return {
        BRONZE: sorted(map(str, records.collect())),
        JOURNEYS: sorted(map(str, merged(rows.drop("key_hash")).collect())),
        SUMS: sorted(map(str, reduce(DataFrame.unionAll, sums).collect())),
    }


@pytest.mark.soak  # a minute of Spark
def test_the_life_of_tables(
    spark: SparkSession, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One ledger for all of it: what is dear here is to make tables, not to look at them."""
    store = open_store(spark, ledger)
    _nothing_changes_where_compaction_fails(store, ledger, monkeypatch)
    told = _compaction_keeps_a_batch_that_comes_in_between(spark, store, ledger, monkeypatch)
    _retention_leaves_sums_and_open_journeys(store, told)
    _raw_files_go_and_the_stream_goes_on(spark, store, ledger)


def _nothing_changes_where_compaction_fails(
    store: TableStore, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = store.latest()
    write_records = compaction.write_records

    def dies(*arguments: object) -> None:
        raise KeyboardInterrupt

    def cut(store: TableStore, records: DataFrame, part: str) -> tuple[DataFile, ...]:
        return write_records(store, records.limit(3), part)

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "require_same", dies)
        with pytest.raises(KeyboardInterrupt):
            compact(store)
        patch.undo()
        patch.setattr(compaction, "write_records", cut)
        with pytest.raises(LedgerError, match=r"10 records .* to be rewritten and 3 were:"):
            compact(store)
    assert store.latest() == snapshot


def _compaction_keeps_a_batch_that_comes_in_between(
    spark: SparkSession, store: TableStore, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[str]]:
    commit = compaction.commit_changes
    seen: list[dict[str, list[str]]] = []
    # A report that began before, on files that are older than it may take.
    read_yet = store.read(BRONZE, store.latest())
    for place in (ledger / "_tables").glob("*/*/*.parquet"):
        os.utime(place, (1_000_000_000, 1_000_000_000))

    def late(*arguments: Any, **named: Any) -> Snapshot | None:
        if not seen:
            write(ledger, "app-8", [received("a", 20)])
            update(spark, ledger)
            seen.append(contents(store))
        return commit(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "commit_changes", late)
        done = compact(store)
    assert (done.files_before[BRONZE], done.files_before[JOURNEYS]) == (2, 2)
    # One that was compacted, and the one that came meanwhile.
    assert (done.files_after[BRONZE], done.files_after[JOURNEYS]) == (2, 2)
    assert done.files_after[SUMS] < done.files_before[SUMS] + len(kept_tables())
    after = contents(store)
    assert after == seen[0]
    assert len(after[BRONZE]) == 11
    assert read_yet.count() == 10
    return after


def _retention_leaves_sums_and_open_journeys(
    store: TableStore, before: dict[str, list[str]]
) -> None:
    done = retain(store, 2, today=FIRST_DAY + timedelta(days=2))
    assert done.first_day_kept == str(FIRST_DAY + timedelta(days=1))
    # a, b and t are settled (t with two rows); "open" is of that day too, and is awaited.
    assert (done.records_removed, done.journeys_removed, done.journeys_open) == (10, 3, 1)
    after = contents(store)
    assert after[SUMS] == before[SUMS]
    assert len(after[BRONZE]) == 1
    named = [re.findall(r"message_id='(\w+)'", row) for row in after[JOURNEYS]]
    assert sorted(named) == [["c"], ["open"]]


def _raw_files_go_and_the_stream_goes_on(
    spark: SparkSession, store: TableStore, ledger: Path
) -> None:
    write(ledger, "app-9", [came_out("open", 3 * DAY_S), completed("open", 3 * DAY_S)])
    assert remove_raw(store, str(ledger)) == ["app-0.jsonl", "app-1.jsonl"]
    # The last batch's, and what no batch has taken, stay.
    assert sorted(one.name for one in ledger.glob("*.jsonl")) == ["app-8.jsonl", "app-9.jsonl"]
    assert remove_raw(store, str(ledger)) == []
    with pytest.raises(LedgerError, match="only copy"):
        rebuild(spark, ledger)
    # What was open is found again when it goes on.
    update(spark, ledger)
    notable = totals(store, store.latest(), NOTABLE).select("message_id", "fate").collect()
    assert ("open", "lost") in {tuple(row) for row in notable}


def test_retention_counts_only_what_it_removed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction that replaces the same files in between has the last word: it is done again."""
    write(tmp_path, "app-1", [sent("a"), sent("b"), sent("c", 2 * DAY_S)])
    before = update(spark, tmp_path)
    store = open_store(spark, tmp_path).for_few()
    commit = compaction.commit_changes
    seen: list[tuple[DataFile, ...]] = []

    def late(*arguments: Any, **named: Any) -> Snapshot | None:
        if not seen:
            old, records = store.lake.files(BRONZE, before), store.read(BRONZE, before)
            seen.append(compaction.write_records(store, records, store.new_part(0)))
            commit(store, {BRONZE: TableChange(seen[0], old)})
        return commit(*arguments, **named)

    monkeypatch.setattr(removal, "commit_changes", late)
    done = retain(store, 2, today=FIRST_DAY + timedelta(days=2))
    assert (done.records_removed, done.journeys_removed, done.journeys_open) == (2, 2, 0)
    kept = sum(file.rows for file in store.lake.files(BRONZE, done.snapshot))
    assert (kept, done.snapshot.records_from) == (1, "2025-10-10")


def test_no_tables_is_said_in_words(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "app-1", BATCHES[0])
    with pytest.raises(LedgerError, match="there are no tables at"):
        compact(open_store(spark, tmp_path))


SECRET = 'jané "doe"'


def naming(ledger: Path, message_id: str) -> list[str]:
    """Files that hold the id, whatever they are."""
    forms = (message_id.encode(), b'jan\\u00e9 \\"doe\\"')
    files = [path for path in ledger.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if any(one in path.read_bytes() for one in forms))


def test_a_lost_message_is_forgotten_and_stays_lost(spark: SparkSession, tmp_path: Path) -> None:
    divert = diverted(SECRET, 1, error="of jane", trace_id="t", sequence_number=7, client="c")
    write_lines(tmp_path, "p-0.jsonl", [sent("a"), divert, received("a", 2)])
    # Completed in the backlog and never forwarded.
    rest = [*moved("b", 3), came_out(SECRET, 4), completed(SECRET, 4)]
    write_lines(tmp_path, "p-1.jsonl", rest)
    whole = json.dumps(completed(SECRET))
    cut = f'{{"v": 1, "error": "{"x" * TEXT_MAX}'[: TEXT_MAX - 5] + written_id(SECRET)
    rejected = [json.dumps({**rest[0], "v": 99}), "foreign", whole[:-9], cut, "foreign"]
    with (tmp_path / "p-1.jsonl").open("a") as file:
        file.write("\n".join(rejected) + "\n")
    before = update(spark, tmp_path)
    store = open_store(spark, tmp_path).for_few()
    reasons = dict(enumerate(("newer", "foreign", "torn", "torn", "foreign"), len(rest) + 1))
    set_aside = rows_of_lines(store, before)
    assert {one["line"]: one["reason"] for one in set_aside} == reasons
    assert [one["text"] for one in set_aside] == [one[:TEXT_MAX] for one in rejected]
    assert {(one["file"], one["batch"]) for one in set_aside} == {("p-1.jsonl", 0)}
    assert before.rejected == {"torn": 2, "newer": 1, "foreign": 2}
    # From a verdict to the lines that it was made from.
    shown = show(store, str(tmp_path), SECRET)
    assert shown["fates"] == [{"entity": "orders", "fate": "lost"}]
    assert [(one["operation"], one["file"], one["line"]) for one in shown["lines"]] == [
        ("divert", "p-0.jsonl", 2),
        ("backlog_receive", "p-1.jsonl", 5),
        ("complete", "p-1.jsonl", 6),
    ]
    fates = store.lake.files("fates", before)
    assert "p-0.jsonl" in naming(tmp_path, SECRET)
    # Killed and begun again, it goes on with the same name.
    new_id = _new_id(PlaceFiles(str(tmp_path)), SECRET)
    done = erase(store, str(tmp_path), SECRET)
    changed = done.records_erased, done.raw_files_changed, done.snapshot.number
    assert changed == (3, 2, before.number + 1)
    assert naming(tmp_path, SECRET) == naming(tmp_path, "of jane") == []
    assert "p-1.jsonl" in naming(tmp_path, new_id)
    rows = {
        table: sum(file.rows for file in store.lake.files(table, done.snapshot))
        for table in (BRONZE, JOURNEYS, "notable")
    }
    assert rows == {BRONZE: 9, JOURNEYS: 3, "notable": 1}
    there = {f"{path.parent.name}/{path.name}" for path in tmp_path.glob("*/bronze/*/*.parquet")}
    assert there == {file.path for file in store.lake.files(BRONZE, done.snapshot)}
    # Lines that name the message lose their text, also one that was cut inside the id.
    texts = {one["line"]: one["text"] for one in rows_of_lines(store, done.snapshot)}
    assert texts == {7: rejected[0], 8: "foreign", 9: "", 10: "", 11: "foreign"}
    # Sums name no message, and the ledger's files are not taken again.
    assert store.lake.files("fates", done.snapshot) == fates
    with current_tables(spark, tmp_path) as tables:
        report = conservation_report(tables, ReportRequest(), None, in_brief=True)
    assert (report.verdict, report.total.accepted) == (ReportVerdict.BAD, 3)
    [lost] = report.messages
    assert (lost.fate, lost.message_id) == ("lost", new_id)
    assert is_erased_id(lost.message_id)
    # The change is signed off: no file looks changed.
    assert report.scope.missing == ()
    # What a rebuild reads tells the same.
    lines = (tmp_path / "p-1.jsonl").read_text().splitlines()[: len(rest)]
    told = [json.loads(one) for one in lines]
    assert [one["operation"] for one in told if one["message_id"] == new_id] == [
        *("backlog_receive", "complete")
    ]
    later = datetime.now(UTC).date() + timedelta(days=1)
    assert _remove_lines(store, store.latest(), later)
    assert rows_of_lines(store, store.latest()) == []
    # A file that is still written cannot be changed by anyone else.
    write_lines(tmp_path, "p-2.jsonl.open", [sent("a", 9)])
    latest = store.latest()
    with pytest.raises(LedgerError, match=r"a was not erased: p-2\.jsonl\.open names it and is"):
        erase(store, str(tmp_path), "a")
    assert store.latest() == latest


def texts_in(store: TableStore, ledger: Path) -> set[str]:
    """Every text of a record that the tables and the files of a ledger have."""
    few, snapshot = store.for_few(), store.latest()
    records = few.read(BRONZE, snapshot).select("error", "client", "trace_id").collect()
    reasons = few.read(STATES, snapshot).select("reason").collect()
    lines = "".join(path.read_text() for path in ledger.glob("*.jsonl")).splitlines()
    told = [json.loads(one) for one in lines if WRITER not in one]
    in_files = [one.get(name) for one in told for name in ("error", "client", "trace_id")]
    return {text for row in (*records, *reasons, in_files) for text in row if text}


def test_texts_about_other_things_no_longer_name_an_erased_message(
    spark: SparkSession, tmp_path: Path
) -> None:
    long = f"{'x' * 293} {SECRET}"[:300]
    suspect = line("state", state="suspect", error=f"a send failed: {SECRET}: no answer")
    down = line("state", at_s=1, state="failed over", error="a send failed")
    lines = [
        *(suspect, down, sent("a", error=f'refused: "{SECRET}" comes first')),
        *(sent("b", error=long), sent("c", error=f"other{SECRET}", client="gate-7")),
        completed("d", view="broker", error=f"TTLExpiredException of {SECRET}"),
        sent("e", client="ours", trace_id=SECRET),
    ]
    write(tmp_path, "p-0", lines)
    (tmp_path / "_proof.json").write_text(json.dumps({"text": f"{SECRET} is lost"}))
    update(spark, tmp_path)
    store = open_store(spark, tmp_path).for_few()
    done = erase(store, str(tmp_path), SECRET)
    assert (done.records_erased, done.raw_files_changed) == (0, 1)
    left = {
        *("a send failed:", "a send failed", 'refused: "', "x" * 293, f"other{SECRET}"),
        *("TTLExpiredException of", "gate-7", "ours"),
    }
    assert texts_in(store, tmp_path) == left
    assert not (tmp_path / "_proof.json").exists()
    # Nothing is left to do; and an id that is a digit or a word costs no text that has it inside.
    for other in (SECRET, "7", "ate", "a", "TTLExpiredException"):
        done = erase(store, str(tmp_path), other)
        expected = (1, 1) if other == "a" else (0, 0)
        assert (done.records_erased, done.raw_files_changed) == expected, other
    left -= {'refused: "', "a send failed:"}
    assert texts_in(store, tmp_path) == left
