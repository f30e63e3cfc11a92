"""Rows that Spark keeps, and what is done where the platform bars it; without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

import pytest

from twinbus.pipeline.spark import kept_rows
from twinbus.pipeline.spark.kept_rows import (
    RowsNotKept,
    persisted,
    pinned_lines,
    release,
    without_history,
)


def rows_that_raise(text: str) -> Any:
    def refuse() -> NoReturn:
        raise RuntimeError(text)

    names = ("persist", "localCheckpoint", "unpersist")
    return SimpleNamespace(**dict.fromkeys(names, refuse))


def test_rows_are_as_they_are_where_nothing_may_be_kept() -> None:
    barred = rows_that_raise("[NOT_SUPPORTED_WITH_SERVERLESS] PERSIST TABLE is not supported")
    assert persisted(barred) is barred
    assert without_history(barred) is barred
    release([barred])


def test_other_failures_are_raised() -> None:
    broken = rows_that_raise("the JVM is gone")
    for keep in (persisted, without_history, pinned_lines):
        with pytest.raises(RuntimeError, match="the JVM is gone"):
            keep(broken)


def test_lines_that_may_change_are_brought_here_or_refused_in_one_line() -> None:
    barred, few = rows_that_raise("NOT_SUPPORTED_WITH_SERVERLESS"), SimpleNamespace(frame="here")
    with mock.patch.object(kept_rows, "brought", return_value={"lines": few}):
        assert str(pinned_lines(barred)) == "here"
    told = r"^this Spark keeps no rows \(serverless\), and more than 20,000 lines [^\n]+$"
    with (
        mock.patch.object(kept_rows, "brought", return_value={}),
        pytest.raises(RowsNotKept, match=told),
    ):
        pinned_lines(barred)
