"""What is read out of the judges' output."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "judges.py"


@pytest.fixture(scope="module")
def judges() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_judges", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tests_of_go_are_read_whole(judges: ModuleType) -> None:
    lines = [
        '{"Action":"run","Package":"./admin","Test":"TestA"}',
        "a line of a program",
        '{"Action":"fail","Package":"./admin","Test":"TestA/part"}',
        '{"Action":"output","Package":"./admin","Test":"TestA","Output":"x"}',
        '{"Action":"pass","Package":"./admin","Test":"TestA"}',
        '{"Action":"run","Package":".","Test":"TestPanics"}',
        '{"Action":"skip","Package":".","Test":"TestB"}',
        '{"Action":"fail","Package":"."}',
    ]
    assert judges.go_outcomes(lines) == {
        "./admin TestA": "passed",
        ". TestPanics": "not finished",
        ". TestB": "skipped",
    }


def test_steps_are_read_with_what_they_said_of_a_failure(judges: ModuleType) -> None:
    lines = [
        "ok   credit 0 delivers nothing, credit 1 exactly one [1419 ms] ",
        "\x1b[0m\x1b[0mok   a step  [3 ms] refused: x",
        "FAIL heartbeats: a client (2 s) [12 ms] amqp:not-found: missing",
        "ok   connect",
        "3 passed, 1 failed",
    ]
    assert judges.step_outcomes(lines) == {
        "credit 0 delivers nothing, credit 1 exactly one": "passed",
        "a step": "passed",
        "heartbeats: a client (2 s)": "amqp:not-found: missing",
        "connect": "passed",
    }
