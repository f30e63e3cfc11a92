"""What Spark raises as one line for a person: its own text is a page of Java."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Final

from twinbus.errors import TwinbusError

_LENGTH_MAX: Final = 300
_SPARKS: Final = {"grpc", "py4j", "pyspark"}

_THROWN: Final = re.compile(r"(?:[a-z]\w*\.)+\w+(?:Exception|Error)\b.*")
"""How Java says what was thrown: after the call that failed, before the stack."""


class SparkFailed(TwinbusError):
    """Spark gave up; the text has the words that say why."""


JVM_GONE: Final = "its JVM ended: it was killed, or had not enough memory"


@contextmanager
def spark_failures_in_one_line() -> Iterator[None]:
    """Raise SparkFailed for what Spark or its JVM raises in the block."""
    try:
        yield
    except Exception as error:
        if not _is_sparks(error):
            raise
        raise SparkFailed(f"Spark could not work it out: {_telling_line(error)}") from error


def _is_sparks(error: Exception) -> bool:
    # By name: who has no Spark is to be told so by the session, not by an import here.
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return bool(packages & _SPARKS) or _is_of_gateway(error)


def _is_of_gateway(error: Exception) -> bool:
    """Whether the connection to the JVM failed: Py4J lets the socket's own errors through."""
    if not isinstance(error, OSError | EOFError):
        return False
    frames = walk_tb(error.__traceback__)
    modules = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames}
    return bool(modules & _SPARKS)


def _telling_line(error: Exception) -> str:
    if _is_of_gateway(error):
        return JVM_GONE
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a Java error asks the JVM for its text
        return JVM_GONE
    thrown = _THROWN.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (thrown[0].strip() if thrown else lines[0] if lines else repr(error))[:_LENGTH_MAX]
