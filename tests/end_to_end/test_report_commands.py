"""`twinbus report` as a person types it: wrong use is one line, a run ends as it should."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import outage_story as story
from tests.processes import run_twinbus
from tests.unit.console.commands import run
from tests.unit.console.pages import assert_self_contained
from twinbus import EmbeddedBroker
from twinbus.pipeline.reports import ledger_tables
from twinbus.pipeline.spark import session
from twinbus.pipeline.spark.java import JavaMissingError

pytestmark = pytest.mark.end_to_end

BAD, ASKED_WRONGLY, UNKNOWN = 1, 2, 3


Refusal = Callable[..., str]


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Returns the one line with which a report is refused before Spark starts."""

    def in_this_process(*arguments: str, status: int = ASKED_WRONGLY) -> str:
        done = run(capsys, "report", *arguments)
        assert (done.out, done.status) == ("", status), done.err
        (line,) = done.err.splitlines()
        assert line.startswith("twinbus: ")
        return line

    return in_this_process


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return story.write_story(tmp_path_factory.mktemp("ledger"))


def test_a_ledger_that_is_none(refusal: Refusal, tmp_path: Path) -> None:
    assert "is not there" in refusal("conservation", str(tmp_path / "gone"))
    (tmp_path / "file").write_text("")
    assert "is a file" in refusal("charges", str(tmp_path / "file"))
    (tmp_path / "empty").mkdir()
    assert "there is no ledger at" in refusal("availability", str(tmp_path / "empty"))


def test_a_ledger_that_must_not_be_written_to(
    refusal: Refusal, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write everywhere: the answer of the system is given here.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != ledger)
    assert "Use --tables DIR, or --tables none" in refusal("charges", str(ledger))


def test_a_small_ledger_needs_no_java_and_a_named_spark_does(
    refusal: Refusal,
    ledger: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def none() -> None:
        raise JavaMissingError("Spark needs Java 17 or newer and there is none")

    monkeypatch.setattr(session, "find_java", none)
    words = ("charges", str(ledger), "--tables", "none")
    # A Spark that another test has left running would be used.
    monkeypatch.setattr(session, "_active", lambda: None)
    told = refusal(*words, "--master", "local[1]", status=BAD)
    assert told == "twinbus: Spark needs Java 17 or newer and there is none"
    monkeypatch.setattr(ledger_tables, "SMALL_BYTES", 0)
    assert refusal(*words, status=BAD) == told
    monkeypatch.undo()
    monkeypatch.setattr(session, "_active", lambda: None)
    monkeypatch.setattr(session, "find_java", none)
    assert run(capsys, "report", *words).status == 0


def test_windows_prices_and_places_that_make_no_sense(
    refusal: Refusal, ledger: Path, tmp_path: Path
) -> None:
    at = str(ledger)
    told = refusal("charges", at, "--since", "2026-11-16", "--until", "2026-11-14")
    assert "the window ends before it begins" in told
    assert "got '-24h'" in refusal("availability", at, "--since=-24h")
    (tmp_path / "book.json").write_text('{"format": 1}')
    assert "price book" in refusal("charges", at, "--prices", str(tmp_path / "book.json"))
    assert "cannot be written" in refusal("charges", at, "--to", str(tmp_path / "no" / "x.html"))
    told = refusal("conservation", at, "--detection-window", "30d")
    assert "--detection-window must be from 0 to 604,800 seconds" in told


def test_a_connection_string_that_is_none_is_not_repeated(refusal: Refusal, ledger: Path) -> None:
    told = refusal("conservation", str(ledger), "--peek", "Endpoint=sb://x;SharedAccessKey=secret")
    assert "secret" not in told
    assert "the secondary namespace" in told


def test_a_run_ends_with_what_is_known_and_its_status(ledger: Path) -> None:
    words = ("report", "reconciliation", str(ledger), "--tables", "none", "--output", "json")
    ended = run_twinbus(*words, timeout_s=500)
    assert ended.returncode == UNKNOWN, ended
    document = json.loads(ended.stdout)
    assert (document["report"], document["verdict"]) == ("reconciliation", "unknown")
    assert document["scope"]["records"] == len(list(story.story()))
    assert ended.stderr == ""
    assert not (ledger / "_tables").exists()


def test_a_peek_is_compared_with_a_small_ledger(
    ledger: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_active", lambda: None)
    monkeypatch.setattr(session, "find_java", None)
    with EmbeddedBroker("contoso-dr") as broker:
        broker.create_queue("contoso/x-servicebus-transfer/0")
        secondary = broker.connection_string()
        words = ("conservation", str(ledger), "--tables", "none", "--output", "json")
        done = run(capsys, "report", *words, "--peek", secondary)
    document = json.loads(done.out)
    assert (done.status, document["verdict"]) == (BAD, "bad"), done.err
    assert document["peeked_ms"]
    assert document["total"]["undecided"] == 0


@pytest.mark.soak
def test_several_reports_with_one_spark(ledger: Path) -> None:
    words = ("report", "all", str(ledger), "--output", "json", "--peek", "none")
    ended = run_twinbus(*words, "--tables", "none", timeout_s=500)
    assert ended.returncode == BAD, ended
    documents = json.loads(ended.stdout)
    verdicts = {kind: document["verdict"] for kind, document in documents.items()}
    # Without the broker's view the reconciliation is unknown, and the lost message decides.
    assert verdicts == {
        "conservation": "bad",
        "availability": "good",
        "charges": "good",
        "reconciliation": "unknown",
    }


def test_pages_of_all_reports_need_a_directory(
    refusal: Refusal, ledger: Path, tmp_path: Path
) -> None:
    told = refusal("all", str(ledger), "--output", "html", "--to", str(tmp_path / "page.html"))
    assert "name an existing directory with --to DIR" in told


@pytest.mark.soak
def test_a_page_of_what_is_lost_with_tables_that_are_kept(ledger: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for _ in range(2):
        ended = run_twinbus(
            "report", "conservation", str(ledger), "--output", "html", "--to", str(page),
            "--tables", str(tmp_path / "tables"), "--peek", "none", timeout_s=600,
        )  # fmt: skip
        assert ended.returncode == BAD, ended
        assert ended.stdout.startswith("at least 1 LOST: 1,830 accepted = 1,826 delivered")
        assert_self_contained(page.read_text())
        assert "o-700" in page.read_text()
