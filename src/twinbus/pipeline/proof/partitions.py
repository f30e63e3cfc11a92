"""Records of messages on disk, in parts by message id, so that each part fits into memory."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, Final

from twinbus.ledger.record import LedgerError
from twinbus.pipeline.core.messages import RecordShape

PART_BYTES: Final = 8 << 20
"""Lines of a ledger that make one part: about 30,000 records, whose messages take 20 MB."""

PARTS_MIN: Final = 8
PARTS_MAX: Final = 4_096
"""Enough for 32 GB; the files of one host are limited to 20 GB (`ledger.files`)."""

BUFFER_BYTES: Final = 12 << 10
"""Of one part in memory."""

PREFIXES_MAX: Final = 50_000


class Partitions:
    """Write records with `add`, then read each part; use it in a `with` block.

    A file is open only while it is written: parts can be more than a process may open.
    """

    def __init__(self, ledger_bytes: int) -> None:
        self._count = min(max(ledger_bytes // PART_BYTES, PARTS_MIN), PARTS_MAX)
        self._buffers: list[list[str]] = [[] for _ in range(self._count)]
        self._sizes = [0] * self._count
        self._prefixes: dict[RecordShape, str] = {}

    def __enter__(self) -> Partitions:
        with _in_words():
            self._directory = tempfile.TemporaryDirectory(prefix="twinbus-proof-")
        return self

    def __exit__(self, *exc: object) -> None:
        self._directory.cleanup()

    def __len__(self) -> int:
        return self._count

    def add(self, shape: RecordShape, at_ms: int, message_id: str) -> None:
        # All records of an id are in one part. The hash differs from run to run, so that no ledger
        # can fill one part on purpose.
        part = hash(message_id) % self._count
        line = f"{self._prefix_of(shape)}{at_ms},{encode_basestring_ascii(message_id)}]\n"
        self._buffers[part].append(line)
        self._sizes[part] += len(line)
        if self._sizes[part] > BUFFER_BYTES:
            self._flush(part)

    def records(self, part: int) -> Iterator[list[Any]]:
        """Yield what `add` was given, as the arguments of `MessageFolder.add`; remove the part."""
        path = self._path(part)
        with _in_words():
            if path.exists():
                with path.open(encoding="ascii") as file:
                    # Many at a time: a call of the decoder takes longer than one record.
                    while lines := file.readlines(BUFFER_BYTES):
                        yield from _decoded(lines)
                path.unlink()
        yield from _decoded(self._buffers[part])
        self._buffers[part] = []

    def _prefix_of(self, shape: RecordShape) -> str:
        found = self._prefixes.get(shape)
        if found is None:
            if len(self._prefixes) > PREFIXES_MAX:
                self._prefixes.clear()
            words = [shape.packed, shape.label, shape.destination, shape.receiver]
            found = self._prefixes[shape] = json.dumps(words)[:-1] + ","
        return found

    def _flush(self, part: int) -> None:
        with _in_words(), self._path(part).open("a", encoding="ascii") as file:
            file.writelines(self._buffers[part])
        self._buffers[part].clear()
        self._sizes[part] = 0

    def _path(self, part: int) -> Path:
        return Path(self._directory.name) / f"{part}.jsonl"


def _decoded(lines: Sequence[str]) -> list[list[Any]]:
    found: list[list[Any]] = json.loads(f"[{','.join(lines)}]")
    return found


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        place = os.environ.get("TMPDIR") or tempfile.gettempdir()
        raise LedgerError(
            f"the proof needs room for temporary files in {place}, about half of the ledger's size:"
            f" {error.strerror or error}; name another directory in TMPDIR"
        ) from error
