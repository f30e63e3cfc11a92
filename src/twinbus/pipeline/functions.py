"""The functions and windows that tables are made of: Spark's, or those of this process (`here`).

One text makes a table either way, as Spark's own functions serve a classic session and Spark
Connect. Which way a call goes is said around all of it (`in_this_process`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from twinbus.pipeline.here import functions as here

if TYPE_CHECKING:
    from pyspark.sql import Window as Window  # noqa: PLC0414 - `F.Window`
    from pyspark.sql.functions import *  # noqa: F403

_is_here: Final[ContextVar[bool]] = ContextVar("is_here", default=False)


class NeedsSpark(Exception):
    """This process does not do what is asked, because of its size or its kind: Spark does."""


def is_here() -> bool:
    """Return whether columns of this process are made."""
    return _is_here.get()


@contextmanager
def in_this_process() -> Iterator[None]:
    """Make columns of this process, for `here.rows.Rows`, in the block."""
    token = _is_here.set(True)
    try:
        yield
    finally:
        _is_here.reset(token)


if not TYPE_CHECKING:  # a checker that sees this function accepts every name

    def __getattr__(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if _is_here.get():
            return getattr(here, name)
        from pyspark.sql import Window, functions

        return Window if name == "Window" else getattr(functions, name)
