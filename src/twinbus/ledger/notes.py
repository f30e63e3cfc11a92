"""Lines that a command leaves in a ledger, as a whole file of its own: begun, written, ended. Pure.

A command that closes a gap or writes a file anew lives for a moment. It puts one file, at a
directory or at a URL, and needs no `writer` for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from twinbus.ledger.facts import WriterNote
from twinbus.ledger.record import FILE_SUFFIX, WRITER, encode


def note_file(
    process: str, host: str, now_ms: int, notes: Sequence[WriterNote]
) -> tuple[str, bytes]:
    """Name and content of a file with these notes; `process` is a new `process_name`."""
    begin = {"state": "begin", "number": 0, "host": host, "started_ms": now_ms, "interval_ms": 0}
    lines = [begin, *(_fields(note) for note in notes)]
    content = b"".join(encode(process, now_ms, WRITER, line) for line in lines)
    digest = hashlib.sha256(content).hexdigest()
    end = {"state": "ended", "lines": len(lines), "hash": digest}
    return f"{process}-00000{FILE_SUFFIX}", content + encode(process, now_ms, WRITER, end)


def _fields(note: WriterNote) -> dict[str, object]:
    return {
        "state": note.state,
        "client": note.client,
        "error": note.why or None,
        "previous": note.hash_before or None,
        "hash": note.hash_after or None,
        "lines": note.lines or None,
    }
