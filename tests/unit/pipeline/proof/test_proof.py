"""The proof from the lines of a ledger: fates by id, foreign input, bounded memory, no Spark.

tests/spark/test_proof.py holds it to the tables.
"""

from __future__ import annotations

import errno
import gzip
import json
import tempfile
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from twinbus.ledger.facts import LINE_MAX
from twinbus.ledger.record import WRITER, LedgerError, encode
from twinbus.ledger.writer import LedgerWriter
from twinbus.pipeline.core.lines import record_in
from twinbus.pipeline.core.messages import MessageFolder, RecordShapes
from twinbus.pipeline.proof import partitions
from twinbus.pipeline.proof.proof import LedgerProof, proof_of
from twinbus.pipeline.reports.documents import ReportVerdict

EPOCH_MS = 1_760_000_000_000
QUEUE = "contoso/x-servicebus-transfer/3"
CAUSES = {"send": "application", "divert": "failover", "receive": "consumer"}


def line(operation: str, message_id: str | None, at_s: int = 0, **more: Any) -> bytes:
    fields = {
        "cause": CAUSES.get(operation, "syphon"),
        "pair": "contoso+east",
        "entity": "orders",
        "message_id": message_id,
        "outcome": "ok",
        **more,
    }
    return encode("p", EPOCH_MS + at_s * 1000, operation, fields)


def story(message_id: str, *operations: str) -> list[bytes]:
    return [line(one, message_id, second) for second, one in enumerate(operations)]


MOVED = ("divert", "backlog_receive", "forward", "complete")
LOST = ("divert", "backlog_receive", "complete")


def proof(directory: Path, lines: Iterable[bytes], name: str = "p-00000.jsonl") -> LedgerProof:
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(b"".join(lines))
    return proof_of(directory)


def fates(found: LedgerProof) -> dict[str, str]:
    return {one.message_id: one.fate for one in found.report.messages}


def test_each_message_has_the_fate_that_its_lines_tell(tmp_path: Path) -> None:
    found = proof(
        tmp_path,
        [
            *story("straight", "send", "receive"),
            *story("moved", *MOVED),
            *story("lost", *LOST),
            *story("stays", "divert"),
            *story("aside", "divert", "dead_letter"),
            line("send", "raised", outcome="failed"),
        ],
    )
    assert fates(found) == {"lost": "lost", "stays": "undecided", "aside": "dead_lettered"}
    total = found.report.total
    assert (total.accepted, total.delivered, total.undecided, total.raised) == (5, 2, 1, 1)
    assert (found.report.verdict, found.report.lost_at_least) == (ReportVerdict.BAD, 1)


def test_nothing_is_lost_if_every_message_came(tmp_path: Path) -> None:
    found = proof(tmp_path, [*story("a", "send", "receive"), *story("b", *MOVED)])
    assert (found.report.verdict, fates(found), found.rejected) == (ReportVerdict.GOOD, {}, ())


def test_what_a_receiver_gave_back_was_not_handed_out(tmp_path: Path) -> None:
    def again(message_id: str, *ends: tuple[str, str | None]) -> list[bytes]:
        """A message that came once, and again after each end of a delivery."""
        of_one = [line("send", message_id), line("receive", message_id, 1)]
        for outcome, state in ends:
            end = {"outcome": outcome, "state": state, "cause": "consumer"}
            of_one += [line("release", message_id, 2, **end), line("receive", message_id, 3)]
        return of_one

    held, given_back = ("failed", "left"), [("ok", None), ("unknown", None), ("failed", None)]
    found = proof(
        tmp_path,
        [
            *again("given back", *given_back),
            *again("again", *given_back),
            line("receive", "again", 4),
            # Its receiver had it, and was closed: it came again, and the reason is known.
            *again("left", held),
            # Nobody knows why.
            *story("twice", "send", "receive", "receive"),
            # What others release says nothing of what consumers got.
            *story("syphon", "send", "receive", "release", "receive"),
        ],
    )
    twice = {(one.message_id, one.window) for one in found.report.duplicates}
    assert twice == {
        *((one, "unexplained") for one in ("again", "twice", "syphon")),
        ("left", "redelivered"),
    }
    assert found.report.total.redeliveries == 6


def test_the_word_of_the_broker_decides_what_a_client_does_not_know(tmp_path: Path) -> None:
    def broker(operation: str, message_id: str, **more: Any) -> bytes:
        return line(operation, message_id, 2, **{"view": "broker", "entity": QUEUE, **more})

    ids = ("waits", "expired", "dropped", "both")
    lines = [
        *(line("divert", one, backlog_queue=QUEUE) for one in ids),
        line("divert", "both", entity="billing", backlog_queue=QUEUE),
        *(broker("send", one) for one in ids),
        broker("expire", "expired"),
        broker("complete", "dropped"),
        broker("send", "nobody"),
    ]
    found = proof(tmp_path, lines)
    # Of "both" there is one copy, and nobody knows whose.
    told = {"waits": "waiting", "expired": "expired", "dropped": "lost", "both": "undecided"}
    assert fates(found) == told
    [sentence] = [one for one in found.report.unknown if one.startswith("1 messages were stored")]
    assert "no record says that they were accepted" in sentence


FOREIGN = {
    "torn": b'{"v":1,"at_ms":176\n',
    "newer": b'{"v":2,"at_ms":1,"operation":"send","process":"p"}\n',
    "no JSON": b"not a record\n",
    "bytes": b"\x00\xff\xfe\n",
    "an array": b"[1]\n",
    "a number": b"5\n",
    "deep": b"[" * 100_000 + b"\n",
    "digits": b'{"v":1,"at_ms":' + b"9" * 10_000 + b"}\n",
    "the year 9999": line("send", "x").replace(str(EPOCH_MS).encode(), b"253370764800000"),
    "a wrong type": line("send", "x").replace(b'"x"', b"5"),
    "no time": b'{"v":1,"operation":"send","process":"p"}\n',
    "null": b'{"v":1,"at_ms":null,"operation":"send","process":"p"}\n',
    "true": b'{"v":true,"at_ms":1,"operation":"send","process":"p"}\n',
    "past 64 bits": line("send", "x", sequence_number=1 << 63),
    "a huge line": line("send", "x" * LINE_MAX),
    "huge and torn": b'{"v":1,' + b"x" * (3 * LINE_MAX) + b"\n",
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
def test_a_line_that_is_no_record_is_named_and_makes_the_answer_unknown(
    tmp_path: Path, foreign: bytes
) -> None:
    found = proof(tmp_path, [line("send", "a"), b"\n", foreign, line("send", "b")])
    assert [(one.file, one.number) for one in found.rejected] == [("p-00000.jsonl", 3)]
    assert found.report.verdict is ReportVerdict.UNKNOWN
    assert sum(found.report.scope.rejected.values()) == 1
    # The lines beside it count all the same.
    assert found.report.total.accepted == 2


def test_a_loss_is_told_although_a_line_could_not_be_read(tmp_path: Path) -> None:
    found = proof(tmp_path, [*story("lost", *LOST), b"not a record\n"])
    assert (found.report.verdict, fates(found)) == (ReportVerdict.BAD, {"lost": "lost"})


def test_a_line_that_is_being_written_is_no_damage(tmp_path: Path) -> None:
    torn = line("send", "b")[:-20]
    open_one = proof(tmp_path / "open", [line("send", "a"), torn], "p-00000.jsonl.open")
    ended = proof(tmp_path / "ended", [line("send", "a"), torn])
    assert (open_one.rejected, open_one.report.scope.rejected) == ((), {})
    assert [(one.number, one.why.split(":")[0]) for one in ended.rejected] == [(2, "torn")]


def test_a_writer_that_was_killed_makes_the_answer_unknown(tmp_path: Path) -> None:
    begin = encode("p", EPOCH_MS, WRITER, {"state": "begin", "number": 0, "interval_ms": 30_000})
    found = proof(tmp_path, [begin, *story("a", "send", "receive")])
    assert found.report.verdict is ReportVerdict.UNKNOWN
    assert any("stopped without an end" in one for one in found.report.unknown)


def test_a_missing_file_a_copy_and_a_damaged_one_are_told(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path, process="me")
    writer.record("send", entity="orders", message_id="a", cause="application", outcome="ok")
    writer.close()
    [path] = tmp_path.glob("*.jsonl")
    assert proof_of(tmp_path).report.verdict is ReportVerdict.GOOD
    (tmp_path / "copy-of-me.jsonl").write_bytes(path.read_bytes())
    copied = proof_of(tmp_path).report
    assert (copied.verdict, copied.total.accepted) == (ReportVerdict.GOOD, 1)
    (tmp_path / "bad-00000.jsonl.gz").write_bytes(gzip.compress(path.read_bytes())[:-30])
    damaged = proof_of(tmp_path).report
    assert damaged.verdict is ReportVerdict.UNKNOWN
    assert any("bad-00000.jsonl.gz" in one for one in damaged.unknown)


def test_a_compressed_file_is_read(tmp_path: Path) -> None:
    packed = gzip.compress(b"".join(story("lost", *LOST)))
    assert fates(proof(tmp_path, [packed], "p-00000.jsonl.gz")) == {"lost": "lost"}


def test_the_parts_of_a_ledger_are_judged_as_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        one
        for number in range(500)
        for one in story(f"{number:04}", *(MOVED, LOST, ("send",))[number % 3])
    ]
    whole = proof(tmp_path / "a", lines).report
    monkeypatch.setattr(partitions, "PARTS_MIN", 97)
    monkeypatch.setattr(partitions, "BUFFER_BYTES", 500)
    made: list[str] = []
    make = tempfile.TemporaryDirectory

    def noted(**given: Any) -> Any:
        directory = make(**given, dir=tmp_path)
        made.append(directory.name)
        return directory

    monkeypatch.setattr(tempfile, "TemporaryDirectory", noted)
    parts = proof(tmp_path / "a", lines).report
    assert parts == whole
    assert (whole.total.accepted, whole.lost_at_least) == (500, 167)
    assert len(made) == 1
    assert not Path(made[0]).exists()


def test_memory_does_not_grow_with_the_records(tmp_path: Path) -> None:
    """Twice the messages: the parts are more, not larger."""
    peaks = []
    for count in (10_000, 20_000):
        lines = (one for number in range(count) for one in story(f"{number:036}", "send"))
        directory = tmp_path / str(count)
        directory.mkdir()
        with (directory / "p-00000.jsonl").open("wb") as file:
            file.writelines(lines)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(partitions, "PART_BYTES", 100_000)
            patch.setattr(partitions, "BUFFER_BYTES", 1_000)
            tracemalloc.start()
            proof_of(directory)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0], peaks


def test_no_room_for_temporary_files_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with pytest.raises(LedgerError, match=r"No space left on device; name another.*TMPDIR"):
        proof(tmp_path, [line("send", "a")])


def test_a_place_without_a_ledger_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(LedgerError):
            proof_of(place)


def test_progress_goes_from_step_to_step_and_never_back(tmp_path: Path) -> None:
    (tmp_path / "p-00000.jsonl").write_bytes(b"".join(story("a", *MOVED)))
    told: list[tuple[str, float]] = []
    proof_of(tmp_path, lambda step, share: told.append((step, share)))
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1
    steps = list(dict.fromkeys(step for step, _ in told))
    assert steps == [
        "comparing the files of the ledger",
        "reading the ledger",
        "judging its messages",
    ]


def test_shapes_are_forgotten_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.pipeline.core.messages.MEMO_MAX", 10)
    shapes, folder = RecordShapes(), MessageFolder({})
    for number in range(100):
        for one in story(f"{number}", "send"):
            record = record_in(json.dumps({**json.loads(one), "entity": f"q{number}"}).encode())
            assert record is not None
            shape = shapes.of(record)
            assert shape.destination == f"q{number}"
            folder.add(*shape[:4], record["at_ms"], record["message_id"])
    assert len(shapes._known) <= 10
    assert sum(len(messages) for messages in folder.take()) == 100
