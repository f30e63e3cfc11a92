"""The conformance baseline: what passed once must pass, and the list only grows."""

from __future__ import annotations

import importlib.util
import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "conformance.py"


@pytest.fixture
def conformance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with its baselines in a directory of the test."""
    spec = importlib.util.spec_from_file_location("ci_conformance", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BASELINES", tmp_path)
    return module


def baseline(tmp_path: Path) -> list[str]:
    return (tmp_path / "baseline-data.txt").read_text().splitlines()[1:]


def test_recording_adds_what_passes_and_takes_nothing_away(
    conformance: ModuleType, tmp_path: Path
) -> None:
    conformance.report("data", {"a": "passed", "b": "passed"}, tmp_path, record=True)
    conformance.report("data", {"b": "why not", "c": "passed"}, tmp_path, record=True)
    assert baseline(tmp_path) == ["a", "b", "c"]


def test_a_recorded_test_that_fails_or_vanishes_breaks_the_run(
    conformance: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conformance.report("data", {"a": "passed", "b": "passed"}, tmp_path, record=True)
    capsys.readouterr()
    outcomes = {"b": "AssertionError: 1 != 2", "never": "recorded nowhere", "new": "passed"}
    assert not conformance.report("data", outcomes, tmp_path, record=False)
    said = capsys.readouterr().out
    assert "BROKEN a: did not run" in said
    assert "BROKEN b: AssertionError: 1 != 2" in said
    assert "new    new" in said
    assert "2 recorded, 2 broken, 1 new" in said
    assert baseline(tmp_path) == ["a", "b"]
    counts = json.loads((tmp_path / "conformance-data.json").read_text())
    assert counts == {"passed": 1, "failed": 2}


def test_unrecorded_failures_are_named_and_do_not_break_the_run(
    conformance: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conformance.report("data", {"a": "failed for now"}, tmp_path, record=False)
    assert "fails  a: failed for now" in capsys.readouterr().out


def test_a_suite_without_results_breaks_the_run(conformance: ModuleType, tmp_path: Path) -> None:
    assert not conformance.report("data", {}, tmp_path, record=False)


def test_outcomes_are_read_from_the_results_file(conformance: ModuleType) -> None:
    cases = ET.fromstring(
        "<s><testcase classname='q.T' name='good'/>"
        "<testcase classname='q.T' name='bad'><failure message='two&#10;lines'/></testcase>"
        "<testcase classname='q.T' name='worse'><error/></testcase>"
        "<testcase classname='q.T' name='left'><skipped/></testcase></s>"
    )
    assert {conformance.test_id(case): conformance.outcome(case) for case in cases} == {
        "q.T::good": "passed",
        "q.T::bad": "two lines",
        "q.T::worse": "error",
        "q.T::left": "skipped",
    }


def test_each_test_that_guarded_receivers_do_not_pass_is_named_with_a_reason(
    conformance: ModuleType,
) -> None:
    home = SCRIPT.parents[1] / "tests" / "conformance"
    missing: list[str] = []
    for name in ("data", "async"):
        plain, guarded = (
            conformance.read_baseline(home / f"baseline-{name}{how}.txt")
            for how in ("", "-guarded")
        )
        missing += plain - guarded
    assert sorted(conformance.listed(home / "not-guarded.txt")) == sorted(missing)


def test_the_copy_of_the_suite_also_imports_the_plugins(
    conformance: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWINBUS_CONFORMANCE_SECONDARY", "")
    suite, out = tmp_path / "suite", tmp_path / "out"
    (suite / "shim").mkdir(parents=True)
    (suite / "shim" / "sbconf_plugin.py").write_text("")
    (suite / "run").write_text("")
    copy = conformance.with_plugin(suite, "127.0.0.1:5", out)
    assert (copy / "run").exists()
    assert (copy / "shim" / "twinbus" / "__init__.py").exists()
    for plugin in conformance.PLUGINS.values():
        assert "PairedClient" in (copy / "shim" / f"{plugin.replace('.', '/')}.py").read_text()
    assert not (suite / "shim" / "tests").exists()
    assert "Endpoint=sb://127.0.0.1:5;" in os.environ["TWINBUS_CONFORMANCE_SECONDARY"]
