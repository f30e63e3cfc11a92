"""What Spark raises as one line for a person: its own text is a page of Java."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from twinbus.errors import TwinbusError

_LENGTH_MAX: Final = 300

_THROWN: Final = re.compile(r"(?:[a-z]\w*\.)+\w+(?:Exception|Error)\b.*")
"""How Java says what was thrown: after the call that failed, before the stack."""


class SparkFailed(TwinbusError):
    """Spark gave up; the text has the words that say why."""


@contextmanager
def spark_failures_in_one_line() -> Iterator[None]:
    """SparkFailed for what Spark or its JVM raises in the block: around a session, or in it."""
    try:
        yield
    except Exception as error:
        if not _is_sparks(error):
            raise
        raise SparkFailed(f"Spark could not work it out: {_telling_line(error)}") from error


def _is_sparks(error: Exception) -> bool:
    # By name: who has no Spark is to be told so by the session, not by an import here.
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return bool(packages & {"py4j", "pyspark"})


def _telling_line(error: Exception) -> str:
    text = str(error)
    thrown = _THROWN.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (thrown[0].strip() if thrown else lines[0] if lines else repr(error))[:_LENGTH_MAX]
