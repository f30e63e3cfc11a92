"""What a line of a ledger is: a record, or one of the reasons for which it is rejected.

Each line is judged alone: a torn line, a file of a later version or a foreign file in the folder
never costs a record of another line.

    torn       begins like a record and is cut off: a crash, or a line being written
    newer      of a later version than this Twinbus reads
    foreign    anything else: damaged, or not of Twinbus

Where Spark and Python differ about a foreign line, Python is the stricter one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from twinbus.ledger.record import FIELDS, VERSION, decode

REASONS: Final = ("torn", "newer", "foreign")
"""Why a line is rejected."""

BEGINNING: Final = '{"v":'

BOUNDS: Final = {
    # Up to the year 2999: reports also name times after the last one, and dates end with 9999.
    "at_ms": 32_503_679_999_999,
    "size_bytes": 1 << 40,
    "unrecorded": 1 << 40,
}
"""Maximum of each number (the minimum is 0): larger ones would overflow sums of good records."""

_INTEGERS: Final = tuple(
    name for name, kind in FIELDS.items() if kind is int and name not in BOUNDS
)
_INTEGER_MAX: Final = (1 << 63) - 1


def record_in(line: bytes) -> Mapping[str, Any] | None:
    """Return the record in a line, or None: `reason_of` says why."""
    found = decode(line)
    if found is None:
        return None
    for name, most in BOUNDS.items():
        if name in found and not 0 <= (found[name] or 0) <= most:
            return None
    for name in _INTEGERS:
        if name in found and not -_INTEGER_MAX <= (found[name] or 0) <= _INTEGER_MAX:
            return None
    return found


def reason_of(line: bytes) -> str:
    """Return why a line has no record, one of `REASONS`."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        beginning = BEGINNING.encode()
        is_cut = line.startswith(beginning) or beginning.startswith(line)
        return "torn" if is_cut else "foreign"
    version = found.get("v") if isinstance(found, dict) else None
    is_newer = isinstance(version, int) and version > VERSION
    return "newer" if is_newer else "foreign"
