"""The benchmark harness: fair rounds, honest results."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.harness import NotMeasured, Progress, Result, Sides, measure, summarise, table, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Recorded:
    """A benchmark that notes who was measured when, and whether both sides were stopped."""

    UNIT: str = "things/s"
    refuses: str = ""
    order: list[str] = field(default_factory=list)
    stopped: bool = False

    @contextmanager
    def sides(self, progress: Progress) -> Iterator[Sides]:
        if self.refuses:
            raise NotMeasured(self.refuses)
        try:
            yield Sides(lambda: self._run("ours", 30.0), lambda: self._run("peer", 10.0), "a note")
        finally:
            self.stopped = True

    def _run(self, side: str, rate: float) -> float:
        self.order.append(side)
        return rate


def test_rounds_are_interleaved_and_alternate_who_goes_first() -> None:
    benchmark = Recorded()
    result = measure("x", benchmark, rounds=3)
    assert benchmark.order == [
        *("ours", "peer"),  # warm-up, not counted
        *("ours", "peer"),
        *("peer", "ours"),
        *("ours", "peer"),
    ]
    assert (result.ratio, result.ours, result.peer, result.unit) == (3.0, 30.0, 10.0, "things/s")
    assert result.note.endswith("a note")
    assert benchmark.stopped


def test_the_ratio_is_the_median_of_the_rounds_and_the_spread_is_told() -> None:
    result = summarise([(30, 10), (40, 10), (10, 10)], "things/s", "")
    assert (result.ratio, result.ours, result.peer) == (3.0, 30, 10)
    assert result.note == "3 rounds; ours 10..40, peer 10..10, ratio 1.00..4.00"


def test_a_benchmark_that_cannot_run_says_why_and_claims_nothing() -> None:
    result = measure("x", Recorded(refuses="no peer here"))
    assert result == Result(None, None, None, "things/s", "not measured: no peer here")
    assert "not measured: no peer here" in table({"x": result})


def test_the_table_names_every_number() -> None:
    rows = table({"a_name": Result(3.0, 30_000.0, 10_000.0, "things/s", "n")}).splitlines()
    assert rows[0].split() == ["benchmark", "ratio", "ours", "peer", "unit"]
    assert rows[1].split() == ["a_name", "3.00", "30,000", "10,000", "things/s"]
    assert rows[-1] == "a_name: n"


def test_results_replace_their_own_entry_keep_others_and_forget_the_unknown(tmp_path: Path) -> None:
    path = tmp_path / "results" / "latest.json"
    old, new = Result(1.0, 1.0, 1.0, "u", "old"), Result(2.0, 2.0, 1.0, "u", "new")
    write(path, {"gone": old, "kept": old, "again": old}, ["gone", "kept", "again"])
    write(path, {"again": new}, ["kept", "again"])
    entries = json.loads(path.read_text())
    assert {name: entry["note"] for name, entry in entries.items()} == {
        "kept": "old",
        "again": "new",
    }
    assert set(entries["again"]) == {"ratio", "ours", "peer", "unit", "note"}
    path.write_text("not json")
    write(path, {"again": new}, ["again"])
    assert list(json.loads(path.read_text())) == ["again"]
