"""A ledger's files before they are read: copies, strays, changes, and writers that were killed."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.console.report.ledger_reports import CONSERVED, NOT_KNOWN
from twinbus.console.report.sheets import conservation_sheet
from twinbus.ledger.files import ID_NAME
from twinbus.ledger.record import LedgerError, encode
from twinbus.ledger.writer import LedgerWriter
from twinbus.pipeline.reports.documents import ReportVerdict
from twinbus.pipeline.store.inspection import InspectedLedger, LedgerFolder
from twinbus.pipeline.store.lake import Snapshot
from twinbus.pipeline.store.store import TableStore
from twinbus.pipeline.store.stream import open_store
from twinbus.pipeline.store.writers import MOVES, SENDS, WAITING, known_from_json
from twinbus.pipeline.tables.gold import kept_tables, signature_of

NOW_MS = time.time_ns() // 1_000_000
OLD_MS = NOW_MS - 90 * 86_400_000
PAIR: dict[str, Any] = {"pair": "contoso+east", "entity": "orders", "outcome": "ok"}
QUEUE = "contoso/x-servicebus-transfer/0"


def inspect_ledger(directory: Path) -> InspectedLedger:
    return LedgerFolder(directory).inspect({})


def old_file(directory: Path, name: str, *lines: tuple[str, dict[str, Any]]) -> Path:
    """A file without a first line, of the process that its name tells."""
    directory.mkdir(exist_ok=True)
    process = name.rpartition("-")[0]
    path = directory / name
    path.write_bytes(b"".join(encode(process, OLD_MS, *line) for line in lines))
    return path


def sent(message_id: str) -> tuple[str, dict[str, Any]]:
    return "send", {**PAIR, "message_id": message_id, "cause": "application"}


def killed(directory: Path, code: str) -> str:
    """Run a writer that is killed after a line of `code`; return the name of its process."""
    program = (
        "import os, signal, sys\n"
        "from twinbus.ledger.writer import LedgerWriter\n"
        f"writer = LedgerWriter({str(directory)!r})\n"
        f"{code}\n"
        "writer.flush()\n"
        "print(writer.process, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    return done.stdout.decode().strip()


def test_a_writer_that_was_killed_is_in_doubt_for_its_last_interval(tmp_path: Path) -> None:
    send = f"writer.record('send', message_id='a', cause='application', **{PAIR!r})"
    process = killed(tmp_path, send)
    inspected = inspect_ledger(tmp_path)
    [gap] = inspected.gaps
    assert (gap.process, gap.roles, gap.doubts) == (process, ("sender",), (SENDS,))
    assert gap.is_open
    assert gap.to_ms is not None
    assert 30_000 <= gap.to_ms - gap.from_ms <= 35_000
    assert abs(gap.from_ms - time.time() * 1000) < 60_000
    assert gap.sentence.startswith(f"{process} stopped without an end: records from ")
    assert (inspected.missing, inspected.remarks) == ((), ())
    # The figures stand, and the answer is not known for that time.
    report = replace(CONSERVED, scope=replace(CONSERVED.scope, gaps=inspected.gaps))
    assert report.verdict is ReportVerdict.UNKNOWN
    assert conservation_sheet(report).headline == NOT_KNOWN
    assert replace(report, lost_at_least=1).verdict is ReportVerdict.BAD
    assert report.as_json()["scope"]["gaps"][0]["process"] == process
    # A writer that ends in order, and one that is at work, leave none.
    with LedgerWriter(tmp_path) as orderly:
        orderly.record("send", message_id="b", cause="application", **PAIR)
    with LedgerWriter(tmp_path) as alive:
        alive.record("send", message_id="c", cause="application", **PAIR)
        alive.flush()
        again = inspect_ledger(tmp_path)
    assert [one.process for one in again.gaps] == [process]
    # A person says that nothing is missing.
    with LedgerWriter(tmp_path) as person:
        person.record("writer", state="closed", client=process, error="looked at by ops")
    [closed] = inspect_ledger(tmp_path).gaps
    assert closed.closed_by is not None
    assert closed.closed_by.startswith("looked at by ops")
    told = replace(report, scope=replace(report.scope, gaps=(closed,)))
    assert told.verdict is ReportVerdict.GOOD
    [read] = (one for one in conservation_sheet(told).sections if one.title == "Read")
    assert any(closed.sentence in one for one in read.lines)
    # What `sets` keeps of a file is all of it.
    for file in again.files.values():
        same = known_from_json(file.as_json())
        assert (same.facts, same.roles, same.pairs, same.states) == (
            *(file.facts, file.roles),
            *(file.pairs, file.states),
        )


def test_the_gap_of_a_sender_is_closed_by_the_brokers_of_both_sides(tmp_path: Path) -> None:
    send = f"writer.record('send', message_id='a', cause='application', **{PAIR!r})"
    killed(tmp_path, send)
    # What served earlier and had stopped kept no record of what came later.
    with LedgerWriter(tmp_path) as earlier:
        for number, state in enumerate(("serving", "recovered", "stopped")):
            for name in ("contoso", "east"):
                told: dict[str, Any] = {"view": "broker", "namespace": name, "state": state}
                earlier.record("state", at_ms=OLD_MS + number, **told)
    assert [gap.is_open for gap in inspect_ledger(tmp_path).gaps] == [True]
    with LedgerWriter(tmp_path) as primary:
        primary.record("state", view="broker", namespace="contoso", state="serving")
        assert [gap.is_open for gap in inspect_ledger(tmp_path).gaps] == [True]
        with LedgerWriter(tmp_path) as secondary:
            secondary.record("state", view="broker", namespace="east", state="serving")
            secondary.flush()
            primary.flush()
            [gap] = inspect_ledger(tmp_path).gaps
    assert gap.closed_by == "the brokers of contoso and east recorded what was done then"
    assert not gap.is_open


def test_the_gap_of_a_broker_is_closed_by_its_successor(tmp_path: Path) -> None:
    serving = "writer.record('state', view='broker', namespace='east', state='serving')\n"
    store = f"writer.record('send', view='broker', namespace='east', entity={QUEUE!r})"
    killed(tmp_path, serving + store)
    [gap] = inspect_ledger(tmp_path).gaps
    assert (gap.roles, gap.doubts, gap.is_open) == (("broker",), (WAITING,), True)
    with LedgerWriter(tmp_path) as successor:
        told: dict[str, Any] = {"view": "broker", "namespace": "east"}
        successor.record("state", state="serving", **told)
        successor.record("state", state="recovered", entity=QUEUE, lines=1, **told)
        successor.record("state", state="recovered", lines=1, **told)
    [gap] = inspect_ledger(tmp_path).gaps
    assert gap.closed_by is not None
    assert gap.closed_by.endswith("served the same namespace afterwards, from its disk")
    assert gap.recovery is not None
    assert (gap.recovery.messages, gap.recovery.at_ms >= gap.from_ms) == (1, True)


def test_the_gap_of_a_syphon_puts_only_moves_in_doubt(tmp_path: Path) -> None:
    killed(tmp_path, f"writer.record('forward', message_id='a', cause='syphon', **{PAIR!r})")
    killed(tmp_path, f"writer.record('receive', message_id='a', cause='consumer', **{PAIR!r})")
    gaps = {gap.roles: gap for gap in inspect_ledger(tmp_path).gaps}
    assert gaps["syphon",].doubts == (MOVES,)
    # A receiver accepts nothing.
    assert not gaps["consumer",].is_open


def test_a_copy_is_refused_and_what_no_reader_takes_is_named(tmp_path: Path) -> None:
    first = old_file(tmp_path, "app-00000.jsonl", sent("a"))
    shutil.copy(first, tmp_path / "app-00000-copy.jsonl")
    (tmp_path / "app-00000.jsonl.open").write_bytes(first.read_bytes()[:-9])
    inspected = inspect_ledger(tmp_path)
    assert sorted(inspected.refused) == ["app-00000-copy.jsonl", "app-00000.jsonl.open"]
    assert inspected.missing == ()
    assert any(one.startswith("app-00000.jsonl.open: not read") for one in inspected.remarks)
    assert any("of an earlier version of Twinbus" in one for one in inspected.remarks)
    # A file of any name is read where it cannot be a copy.
    (tmp_path / "app-00000-copy.jsonl").rename(tmp_path / "moved-00000.jsonl")
    first.unlink()
    (tmp_path / "app-00000.jsonl.open").unlink()
    assert inspect_ledger(tmp_path).refused == {}
    # Compressed it is read, below the ledger it is not.
    packed = tmp_path / "more-00000.jsonl.gz"
    packed.write_bytes(gzip.compress(encode("more", OLD_MS, *sent("b"))))
    old_file(tmp_path, "more-00001.jsonl", sent("d"))
    old_file(tmp_path / "host-2", "other-00000.jsonl", sent("c"))
    old_file(tmp_path / "_old", "other-00000.jsonl", sent("e"))
    (tmp_path / "more-00002.jsonl.zst").write_bytes(b"?")
    (tmp_path / "more-00003.jsonl.gz").write_bytes(packed.read_bytes()[:-9])
    inspected = inspect_ledger(tmp_path)
    assert list(inspected.refused) == ["more-00003.jsonl.gz"]
    assert sorted(inspected.new({})) == [
        *("more-00000.jsonl.gz", "more-00001.jsonl", "moved-00000.jsonl")
    ]
    [sentence] = inspected.missing
    strays = "_old/other-00000.jsonl, host-2/other-00000.jsonl, more-00002.jsonl.zst"
    assert sentence.startswith(f"not read: 4 files ({strays} and 1 more)")


def test_a_file_that_changed_after_it_was_taken_is_noticed(tmp_path: Path) -> None:
    old_file(tmp_path, "app-00000.jsonl", sent("a"))
    folder = LedgerFolder(tmp_path)
    taken = dict(folder.inspect({}).new({}))
    assert folder.inspect(taken).missing == ()
    old_file(tmp_path, "app-00000.jsonl", sent("a"), sent("b"))
    [sentence] = folder.inspect(taken).missing
    assert sentence.startswith("app-00000.jsonl: changed since the tables took it, from ")
    # Gone from the ledger, it is still in the tables.
    (tmp_path / "app-00000.jsonl").unlink()
    assert folder.inspect(taken).missing == ()


def test_an_open_file_of_the_dead_is_not_taken_for_whole(tmp_path: Path) -> None:
    torn = old_file(tmp_path, "elsewhere-77-1-00000.jsonl.open", sent("a"))
    torn.write_bytes(torn.read_bytes() + b'{"v":1,"at_ms":1')
    assert inspect_ledger(tmp_path).torn == 0
    os.utime(torn, (OLD_MS / 1000, OLD_MS / 1000))
    assert inspect_ledger(tmp_path).torn == 1


def test_tables_belong_to_one_ledger(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for ledger in (first, second):
        old_file(ledger, "app-00000.jsonl", sent("a"))
    store = TableStore(None, tmp_path / "tables")
    gold = signature_of(kept_tables())
    store.lake.publish(Snapshot(), Snapshot(ledger=f"file:{first}", gold=gold), {}, {})
    open_store(None, first, store.place)
    with pytest.raises(LedgerError, match=f"belong to another ledger than {second}"):
        open_store(None, second, store.place)
    # It has an id from its next writer on, and tables that know it by its address follow.
    with LedgerWriter(first) as writer:
        writer.record("send", message_id="b")
    open_store(None, first, store.place)
    identity = (first / ID_NAME).read_text().strip()
    store.lake.publish(store.latest(), Snapshot(ledger=identity, gold=gold), {}, {})
    moved = first.rename(tmp_path / "moved")
    open_store(None, moved, store.place)
    with pytest.raises(LedgerError, match="belong to another ledger"):
        open_store(None, second, store.place)
