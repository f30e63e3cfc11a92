"""Rows that Spark keeps because several queries read them, and what is done where it may not.

Serverless compute refuses to persist rows and to cut their history (NOT_SUPPORTED_WITH_SERVERLESS).
There each query works them out again from files that do not change: a report then takes as many
times longer as it has queries. Lines of files that may grow are brought to this process instead, or
two queries would see different ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from twinbus.errors import TwinbusError
from twinbus.pipeline.spark.few_rows import ROWS_MAX, brought

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_BARRED: Final = "NOT_SUPPORTED_WITH_SERVERLESS"
_LINES: Final = "lines"


class RowsNotKept(TwinbusError):
    """This Spark keeps no rows, and there are too many for this process; the text says which."""


def persisted(rows: DataFrame) -> DataFrame:
    """Return rows that Spark keeps, or the same rows where it may not."""
    there = _allowed(rows.persist)
    return rows if there is None else there


def without_history(rows: DataFrame) -> DataFrame:
    """Return rows that Spark computes now and plans no more, or the same rows where it may not."""
    there = _allowed(rows.localCheckpoint)
    return rows if there is None else there


def pinned_lines(lines: DataFrame) -> DataFrame:
    """Return lines of files that may grow: all queries of the result read the same ones."""
    there = _allowed(lines.persist)
    if there is not None:
        return there
    few = brought({_LINES: lines})
    if not few:
        raise RowsNotKept(
            f"this Spark keeps no rows (serverless), and more than {ROWS_MAX:,} lines are in files"
            " of the ledger that are still written, or read without tables: end those files, keep"
            " tables, or use a classic session"
        )
    return few[_LINES].frame


@contextmanager
def kept(frames: Mapping[str, DataFrame], *, likely_few: bool) -> Iterator[dict[str, DataFrame]]:
    """Yield frames whose rows are computed once: here, if they are few, or by Spark's cache.

    `likely_few`: what they are made of is small, so that Spark need not plan for its cache.
    """
    cached: dict[str, DataFrame] = {}
    try:
        if not likely_few:
            # Before they are brought, or those of many rows would be computed twice.
            cached = {name: persisted(frame) for name, frame in frames.items()}
        few = brought({**frames, **cached})
        for name in frames.keys() - few.keys() - cached.keys():
            cached[name] = persisted(frames[name])
        yield {name: few[name].frame if name in few else cached[name] for name in frames}
    finally:
        release(cached.values())


def release(frames: Iterable[DataFrame]) -> None:
    """Let Spark drop rows that it keeps."""
    for frame in frames:
        _allowed(frame.unpersist)


def _allowed(work: Callable[[], DataFrame]) -> DataFrame | None:
    """Return the result of a call, or None if the platform refuses it."""
    try:
        return work()
    except Exception as error:
        if _BARRED not in str(error):
            raise
        return None
