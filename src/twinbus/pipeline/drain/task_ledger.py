"""The ledger of one task, at a place that all executors reach: a directory, or a URL.

A directory (on one machine, or mounted on all) is written to as any process does; what was written
survives the task's death. To a URL a task brings closed files: it writes them on its own disk and
carries them over every few seconds and at its end, so that a death costs no more than those. URLs
are those that pyarrow knows: hdfs, s3 (also as s3a), gs, abfs and abfss.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

from twinbus.ledger import LedgerError, LedgerWriter, NullLedger
from twinbus.ledger.record import OPEN_SUFFIX
from twinbus.syphon.relay.bookkeeping import RelayLedger

log = logging.getLogger("twinbus.pipeline")

CARRY_S: Final = 10.0
"""Between two files: the records that the loss of an executor's disk can cost."""

LAST_TRIES: Final = 3
"""At the end of a task, before its files are left where they are."""
LAST_WAIT_S: Final = 2.0

_BLOCK_BYTES: Final = 1024 * 1024


@contextlib.contextmanager
def task_ledger(place: str | None, process: str) -> Iterator[RelayLedger]:
    """A ledger for a `with` block; closed, and where it belongs, after it."""
    if not place:
        yield NullLedger()
    elif is_url(place):
        with CarriedLedger(place, process) as carried:
            yield carried
    else:
        with LedgerWriter(place, process=process) as writer:
            yield writer


def is_url(place: str) -> bool:
    """Whether it is a URL of another file system than the machine's own."""
    scheme, separator, _ = place.partition("://")
    return bool(separator) and scheme != "file"


def require_place(place: str | None) -> None:
    """LedgerError for a URL that tasks could not write to; nothing is written."""
    if place and is_url(place):
        _file_system(place)


class CarriedLedger:
    """Records into closed files at a URL, through this machine's disk."""

    def __init__(self, url: str, process: str, *, carry_s: float = CARRY_S) -> None:
        self._url = url
        self._files, self._folder = _file_system(url)
        self._process = process
        self._carry_s = carry_s
        self._number = 0
        self._staging = Path(tempfile.mkdtemp(prefix="twinbus-ledger-"))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._is_told = False
        self._writer = self._next()
        self._thread = threading.Thread(target=self._run, name="twinbus-carry", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._writer.close()
        for again in range(LAST_TRIES):
            if self._carry():
                shutil.rmtree(self._staging, ignore_errors=True)
                return
            if again + 1 < LAST_TRIES:
                threading.Event().wait(LAST_WAIT_S)
        log.error(
            "ledger: %s takes no files; what this task recorded stays in %s, copy it from there",
            self._url,
            self._staging,
        )

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        """Note one operation; as a LedgerWriter does, it returns at once."""
        with self._lock:
            self._writer.record(operation, at_ms=at_ms, **fields)

    def record_deliveries(
        self,
        operation: str,
        shared: tuple[tuple[str, object], ...],
        at_ms: int | None,
        deliveries: Sequence[tuple[str | None, int, int, int | None]],
    ) -> None:
        """Note an operation on many messages, as a LedgerWriter does."""
        with self._lock:
            self._writer.record_deliveries(operation, shared, at_ms, deliveries)

    def _next(self) -> LedgerWriter:
        self._number += 1
        process = f"{self._process}-{self._number}"
        # A directory for each writer: what lies in one whose writer is closed may be carried.
        return LedgerWriter(self._staging / f"{self._number:06d}", process=process)

    def _run(self) -> None:
        while not self._stop.wait(self._carry_s):
            with self._lock:
                ended, self._writer = self._writer, self._next()
            ended.close()
            self._carry(but=self._writer.directory)

    def _carry(self, but: Path | None = None) -> bool:
        """Bring what is closed to the URL; False: it does not take it now."""
        for path in sorted(self._staging.glob("*/*")):
            if path.parent == but:
                continue
            try:
                self._bring(path)
            except OSError as error:
                if not self._is_told:
                    self._is_told = True
                    log.warning("ledger: %s does not take %s: %s", self._url, path.name, error)
                return False
            path.unlink()
        return True

    def _bring(self, path: Path) -> None:
        # A name that no reader takes for a file of a ledger: they see a whole file or none.
        ended = path.name.removesuffix(OPEN_SUFFIX)
        unfinished, name = f"{self._folder}/.{ended}.draft", f"{self._folder}/{ended}"
        self._files.create_dir(self._folder, recursive=True)
        with path.open("rb") as source, self._files.open_output_stream(unfinished) as target:
            while block := source.read(_BLOCK_BYTES):
                target.write(block)
        self._files.move(unfinished, name)


def _file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it; LedgerError where pyarrow has none."""
    fs: Any = importlib.import_module("pyarrow.fs")
    scheme, _, rest = url.partition("://")
    known = f"s3://{rest}" if scheme in {"s3a", "s3n"} else url
    try:
        files, folder = fs.FileSystem.from_uri(known)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise LedgerError(
            f"tasks cannot write a ledger to {url}: {reason}; name a directory that all executors"
            " reach, or a URL of hdfs, s3, gs or abfss"
        ) from error
    return files, folder.rstrip("/")
