"""CI's second chance: only for tests of real processes, and only for a few of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def second_chance() -> ModuleType:
    spec = importlib.util.spec_from_file_location("second_chance", ROOT / ".ci/second_chance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("test", "named"),
    [
        (
            "tests.end_to_end.test_kill::test_a@tests/end_to_end/test_kill.py",
            "tests/end_to_end/test_kill.py::test_a",
        ),
        ("tests.spark.test_x::test_b[a@b]@spark programs", "tests/spark/test_x.py::test_b[a@b]"),
        ("tests.contract.test_x::test_b[a@spark]", "tests/contract/test_x.py::test_b[a@spark]"),
    ],
)
def test_a_failed_test_is_named_as_pytest_knows_it(
    second_chance: ModuleType, test: str, named: str
) -> None:
    assert second_chance.node_id(test) == named


@pytest.mark.parametrize(
    "failed",
    [
        [],
        ["tests.unit.test_a::test_a"],
        ["tests.contract.test_a::test_a", "tests.property.test_b::test_b"],
        [f"tests.contract.test_a::test_{number}" for number in range(4)],
    ],
)
def test_pure_logic_and_many_failures_get_none(
    second_chance: ModuleType, failed: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = tmp_path / "tests.xml"
    cases = [one.split("::") for one in failed]
    body = "".join(f'<testcase classname="{m}" name="{n}"><failure/></testcase>' for m, n in cases)
    results.write_text(f"<testsuites><testsuite>{body}<testcase/></testsuite></testsuites>")
    monkeypatch.setattr("sys.argv", ["second_chance", "--results", str(results)])
    monkeypatch.setattr(second_chance.subprocess, "run", pytest.fail)
    assert second_chance.failures(results) == failed
    assert second_chance.main() == 1
