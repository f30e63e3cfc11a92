"""One line of the ledger: its fields, its words, and its form as bytes.

A line is one JSON object of the fields below, in ASCII (other characters are escaped, so that no
cut falls inside one), ended by LF. Fields that do not apply are left out. Spark reads the same
lines with the schema in `twinbus.pipeline.schemas`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from twinbus.errors import TwinbusError

__all__ = [
    "CAUSES",
    "FIELDS",
    "FILE_SUFFIX",
    "OPERATIONS",
    "OUTCOMES",
    "VERSION",
    "LedgerError",
    "decode",
    "encode",
]

VERSION: Final = 1
"""Goes up when a reader of today would misread a line of tomorrow. A new field is none."""

FILE_SUFFIX: Final = ".jsonl"

OPERATIONS: Final = frozenset(
    """send divert ping backlog_receive complete defer dead_letter forward receive renew manage
    state""".split()
)
"""What was done. All are calls to a namespace but `state`, which is news of an entity."""

CAUSES: Final = frozenset("application failover ping syphon poll administration consumer".split())
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
    "view": str,
    "unrecorded": int,
}
"""Every field with its type, the four that each line has first. `entity` is where the message
belongs, as a path in the primary. `unrecorded`, on a `state` line, is how many records before it
this process could not write: whoever counts must say so."""

REQUIRED: Final = ("v", "at_ms", "operation", "process")

_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False)


class LedgerError(TwinbusError):
    """A ledger cannot be used; the text names the directory and says why."""


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
    """The record in a line, or None where there is none: cut off, foreign, or of a later version.

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
    return found if all(_fits(name, value) for name, value in found.items()) else None


def _fits(name: str, value: object) -> bool:
    wanted = FIELDS.get(name)
    if wanted is None or value is None:
        return True
    return isinstance(value, wanted) and not isinstance(value, bool)
