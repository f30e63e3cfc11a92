"""Small ledgers, line by line, as the parts of a pair would write them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twinbus.ledger.record import VERSION
from twinbus.pipeline.spark.session import session_for_few
from twinbus.pipeline.tables.journeys import judged, partial_journeys
from twinbus.pipeline.tables.schemas import LEDGER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Line = dict[str, Any]

EPOCH_MS = 1_760_000_000_000
"""2025-10-09 08:53:20 UTC."""


PAIR = "contoso+east"
LABEL = "contoso"


def line(operation: str, message_id: str | None = None, at_s: float = 0, **fields: Any) -> Line:
    """One record about the queue `orders`, `at_s` seconds after the beginning."""
    return {
        "v": VERSION,
        "at_ms": EPOCH_MS + int(at_s * 1000),
        "operation": operation,
        "process": "test",
        # A broker knows nothing of pairs.
        "pair": None if fields.get("view") == "broker" else PAIR,
        "entity": "orders",
        "message_id": message_id,
        "outcome": "ok",
        **fields,
    }


def sent(message_id: str, at_s: float = 0, **fields: Any) -> Line:
    return line("send", message_id, at_s, **{"cause": "application", "size_bytes": 100, **fields})


def diverted(message_id: str, at_s: float = 0, **fields: Any) -> Line:
    return line("divert", message_id, at_s, **{"cause": "failover", "size_bytes": 150, **fields})


def came_out(message_id: str, at_s: float = 0) -> Line:
    return line("backlog_receive", message_id, at_s, cause="syphon", size_bytes=150)


def forwarded(message_id: str, at_s: float = 0, **fields: Any) -> Line:
    return line("forward", message_id, at_s, **{"cause": "syphon", "size_bytes": 100, **fields})


def completed(message_id: str, at_s: float = 0, **fields: Any) -> Line:
    return line("complete", message_id, at_s, **{"cause": "syphon", **fields})


def received(message_id: str, at_s: float = 0, **fields: Any) -> Line:
    return line("receive", message_id, at_s, **{"cause": "consumer", "size_bytes": 100, **fields})


def released(message_id: str, at_s: float = 0, **fields: Any) -> Line:
    return line("release", message_id, at_s, **{"cause": "consumer", **fields})


def moved(message_id: str, at_s: float = 0, out_s: float = 10) -> list[Line]:
    """A message that went by the backlog, from its sender to its destination."""
    return [
        diverted(message_id, at_s),
        came_out(message_id, out_s),
        forwarded(message_id, out_s),
        completed(message_id, out_s),
    ]


TWIN: Line = {"backlog_queue": "orders", "side": "secondary", "namespace": "east"}
"""The fields of senders' and syphons' lines about the twin of `orders`."""


def twinned(message_id: str, at_s: float = 0, **fields: Any) -> Line:
    """A divert to the twin."""
    return diverted(message_id, at_s, **{**TWIN, **fields})


def brought_home(message_id: str, at_s: float = 0) -> list[Line]:
    """What the syphon does with a message of a twin."""
    home = {"backlog_queue": "orders", "side": "primary", "namespace": LABEL}
    return [
        line("backlog_receive", message_id, at_s, cause="syphon", size_bytes=150, **TWIN),
        forwarded(message_id, at_s, **home),
        completed(message_id, at_s, **TWIN),
    ]


def second_copy(message_id: str, at_s: float = 0, **fields: Any) -> list[Line]:
    """A copy that a receiver completes without handing it out."""
    done = {"cause": "consumer", "state": "second_copy", **fields}
    return [received(message_id, at_s, **fields), line("complete", message_id, at_s, **done)]


def rows(lines: list[Line]) -> list[tuple[Any, ...]]:
    """The lines as rows of the ledger's schema."""
    return [tuple(one.get(name) for name in LEDGER.fieldNames()) for one in lines]


def ledger(spark: SparkSession, *lines: Line) -> DataFrame:
    """The lines as a table of the ledger, in a session that compiles no code for so few."""
    return session_for_few(spark).createDataFrame(rows(list(lines)), LEDGER).coalesce(1)


def at_hand(frame: DataFrame) -> DataFrame:
    """The same rows, worked out once: whatever is made of them costs no more than itself."""
    return frame.sparkSession.createDataFrame(frame.collect(), frame.schema)


def assert_rows(found: DataFrame, expected: Sequence[tuple[Any, ...]], schema: StructType) -> None:
    """The rows are these in any order, with the columns of the schema."""
    columns = [(field.name, field.dataType) for field in found.schema]
    assert columns == [(field.name, field.dataType) for field in schema]
    assert Counter(map(tuple, found.collect())) == Counter(expected)


def fates(records: DataFrame) -> DataFrame:
    """Every message of the records with its fate, as far as records tell."""
    return judged(partial_journeys(records))
