"""One line of the ledger: its fields, its words, and its form as bytes.

A line is one JSON object of the fields below, in ASCII (other characters are escaped, so that no
cut falls inside one), ended by LF. Fields that do not apply are left out. Spark reads the same
lines with the schema in `twinbus.pipeline.tables.schemas`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from twinbus.errors import TwinbusError

VERSION: Final = 1
"""Increment when old readers would misread new lines. A new field does not count."""

FILE_SUFFIX: Final = ".jsonl"
OPEN_SUFFIX: Final = ".open"
"""Added to the name while a file is written (`files`)."""

OPERATIONS: Final = frozenset(
    """send divert ping backlog_receive complete abandon release defer dead_letter forward receive
    renew manage state expire action writer""".split()
)
"""What was done. All are calls to a namespace but `state`, which is news of an entity, `expire`, a
message that expired, which only a broker sees, `action`, an action of a person on the page: its
name is in `state`, the person in `error`; and `writer`, a line about the ledger itself (`chain`).
A `release` gives a message back that was not handed out; with state "left", one that its receiver
had and left behind unsettled.
Readers skip unknown operations: a new one needs no new version."""

WRITER: Final = "writer"
"""The operation of lines about the ledger itself, which are not records and not counted."""

CAUSES: Final = frozenset(
    "application failover ping syphon poll lease administration consumer board".split()
)
"""Who wanted it: the bill is split by these."""

OUTCOMES: Final = frozenset({"ok", "failed", "unknown"})
"""`unknown`: the call ended without an answer, so it may have been carried out."""

FIELDS: Final[Mapping[str, type]] = {
    "v": int,
    "at_ms": int,
    "operation": str,
    "process": str,
    "cause": str,
    "pair": str,
    "namespace": str,
    "side": str,
    "entity": str,
    "backlog_queue": str,
    "message_id": str,
    "sequence_number": int,
    "size_bytes": int,
    "outcome": str,
    "error": str,
    "latency_us": int,
    "state": str,
    "trace_id": str,
    "client": str,
    "view": str,
    "unrecorded": int,
    "number": int,
    "lines": int,
    "hash": str,
    "previous": str,
    "before": str,
    "host": str,
    "started_ms": int,
    "interval_ms": int,
}
"""Every field with its type, the four that each line has first. `entity` is where the message
belongs, as a path in the primary. `backlog_queue` of a divert to a twin is that path too.
`client` is the container id of the connection that a message came by to a gateway. `view` is the
recording end: `client`, which is left out, or `broker`, whose fields `twinbus.broker.ledger_view`
describes. `unrecorded`, on a `state` line, is how many records before it this process could not
write: reports must say so. There is no field for billing units: they are the size, and how it is
counted is the reader's rule. From `number` on, fields are those of `writer` lines, which `chain`
describes; a broker's `state` line "recovered" has `lines` too (`twinbus.broker.ledger_view`)."""

ERROR_LENGTH_MAX: Final = 300
"""Characters that writers keep of an `error`: a text of the service can be pages long, and a client
may have written it."""

REQUIRED: Final = ("v", "at_ms", "operation", "process")

_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False)


class LedgerError(TwinbusError):
    """A ledger cannot be used; the text names the directory and says why."""


class LineForm:
    """What the lines of many messages have in common: an operation and the fields that stay."""

    __slots__ = ("fields", "operation")

    def __init__(self, operation: str, **fields: object) -> None:
        assert operation in OPERATIONS, f"no such operation: {operation}"
        assert fields.keys() <= FIELDS.keys() - _OF_A_MESSAGE, f"not to be shared: {fields.keys()}"
        self.operation = operation
        self.fields = fields

    def of(self, process: str) -> str:
        """The common part as text, to be kept: `encode_messages` puts the rest around it."""
        return encode(process, 0, self.operation, self.fields)[len(_NO_TIME) : -2].decode()


_TIME: Final = f'{{"v":{VERSION},"at_ms":'
_NO_TIME: Final = f"{_TIME}0,"
_OF_A_MESSAGE: Final = {*REQUIRED, "latency_us", "message_id", "size_bytes"}


def encode_messages(
    common: str, at_ms: int, latency_us: int, messages: Sequence[tuple[str | None, int | None]]
) -> str:
    """The lines of one call's messages, each `(id, size in bytes)`, round what `LineForm.of` gave.

    The same lines as `encode` would make one by one, for a sixth of its price or less: a ledger is
    part of what a healthy send costs.
    """
    head = f'{_TIME}{at_ms},{common},"latency_us":{latency_us}'
    return "".join([head + _of_message(*message) for message in messages])


def encode_message(
    common: str, at_ms: int, latency_us: int, message_id: str | None, size_bytes: int | None
) -> str:
    """The line of a call's only message; one expression, for nearly every send comes by here."""
    if message_id is None or size_bytes is None:
        return encode_messages(common, at_ms, latency_us, ((message_id, size_bytes),))
    return (
        f'{_TIME}{at_ms},{common},"latency_us":{latency_us},'
        f'"message_id":{encode_basestring_ascii(message_id)},"size_bytes":{size_bytes}}}\n'
    )


def _of_message(message_id: str | None, size_bytes: int | None) -> str:
    if message_id is None:
        return "}\n" if size_bytes is None else f',"size_bytes":{size_bytes}}}\n'
    name = encode_basestring_ascii(message_id)
    if size_bytes is None:
        return f',"message_id":{name}}}\n'
    return f',"message_id":{name},"size_bytes":{size_bytes}}}\n'


def encode_deliveries(
    common: str, at_ms: int, deliveries: Sequence[tuple[str | None, int, int | None, int | None]]
) -> str:
    """The lines of many deliveries round what they have in common, as `encode_messages` does.

    Each is message id, size in bytes, sequence number, and how long it took in us; all but the
    size may be None.
    """
    head = f"{_TIME}{at_ms},{common}"
    lines = []
    for message_id, size_bytes, sequence_number, latency_us in deliveries:
        named = "" if message_id is None else f',"message_id":{encode_basestring_ascii(message_id)}'
        took = "" if latency_us is None else f',"latency_us":{latency_us}'
        at = "" if sequence_number is None else f',"sequence_number":{sequence_number}'
        lines.append(f'{head}{named}{at},"size_bytes":{size_bytes}{took}}}\n')
    return "".join(lines)


def encode(process: str, at_ms: int, operation: str, fields: Mapping[str, object]) -> bytes:
    """The line of one record; fields that are None are left out.

    A value of another type (a message id may be a number or a UUID) is made one of its field's.
    """
    whole: dict[str, object] = {
        "v": VERSION,
        "at_ms": at_ms,
        "operation": operation,
        "process": process,
    }
    for name, value in fields.items():
        if value is not None:
            wanted = FIELDS[name]
            whole[name] = value if isinstance(value, wanted) else wanted(value)
    return _encoder.encode(whole).encode("ascii") + b"\n"


def decode(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line; None if it is cut off, foreign, or of a later version.

    Fields of another name are kept; a field of this table with a value of another type makes the
    line foreign, for Spark would not read it either.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("v") != VERSION:
        return None
    if any(found.get(name) is None for name in REQUIRED):
        return None
    for name, value in found.items():
        wanted = FIELDS.get(name)
        # The types of JSON are exact: a bool is no int.
        if type(value) is not wanted and wanted is not None and value is not None:
            return None
    return found
