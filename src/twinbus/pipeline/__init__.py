"""The ledger as tables, and the syphon as a job, on Spark (docs/tables.md).

`core` has the rules that judge messages, `tables` are pure functions over DataFrames, `store` keeps
them on disk, `reports` makes plain data of them, `proof` does without Spark what a report of
conservation does, `drain` is the syphon, `spark` starts a quiet session. `planner` simulates years.

The names in `__all__` are for users (docs/tables.md). They load on first use: only what uses Spark
loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.extras import load

if TYPE_CHECKING:
    from twinbus.pipeline.frames import (
        Frames,
        conservation,
        publish,
        read_ledger,
        read_tables,
        update,
    )
    from twinbus.pipeline.spark.session import start_session

__all__ = [
    "Frames",
    "conservation",
    "publish",
    "read_ledger",
    "read_tables",
    "start_session",
    "update",
]

if not TYPE_CHECKING:  # a checker that sees this function accepts every name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'twinbus.pipeline' has no attribute {name!r}")
        home = "spark.session" if name == "start_session" else "frames"
        value = load(f"twinbus.pipeline.{home}", name)
        globals()[name] = value
        return value
