"""The ledger of one task, at a place that all executors reach: a directory, or a URL.

A task writes to a directory (on one machine, or mounted on all) like any process; its records
survive its death. To a URL it uploads closed files: it writes them on its own disk and uploads them
every few seconds and at its end, so that its death costs only the records since then; the last
uploaded file says that another follows (`ledger.facts`). pyarrow knows the URLs of hdfs, s3 (also
as s3a), gs, abfs and abfss.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

from twinbus.ledger import LedgerError, LedgerWriter, NullLedger
from twinbus.ledger.files import ID_NAME
from twinbus.ledger.record import FILE_SUFFIX
from twinbus.syphon.relay.bookkeeping import RelayLedger

log = logging.getLogger("twinbus.pipeline")

UPLOAD_S: Final = 10.0
"""Time between two uploads: the loss of an executor's disk costs the records since the last one."""

IDLE_UPLOAD_S: Final = 300.0
"""The same while nothing is recorded: the file shows that the task is alive."""

LAST_TRIES: Final = 3
"""Tries to upload at the end of a task, before its files are left on its disk."""
LAST_WAIT_S: Final = 2.0

_BLOCK_BYTES: Final = 1024 * 1024


@contextlib.contextmanager
def task_ledger(place: str | None, process: str) -> Iterator[RelayLedger]:
    """Yield a ledger; afterwards it is closed, and its files are at their place."""
    if not place:
        yield NullLedger()
    elif is_url(place):
        with UploadedLedger(place, process) as uploaded:
            yield uploaded
    else:
        with LedgerWriter(place, process=process) as writer:
            yield writer


def is_url(place: str) -> bool:
    """Return whether a place is a URL of another file system than the local one."""
    scheme, separator, _ = place.partition("://")
    return bool(separator) and scheme != "file"


def prepare_place(place: str | None) -> None:
    """Give a ledger at a URL its id, for all tasks; LedgerError if they cannot write there.

    A directory gets its id from its first writer.
    """
    if place and is_url(place):
        files, folder = _file_system(place)
        identity = f"{folder}/{ID_NAME}"
        try:
            if not files.get_file_info(identity).is_file:
                files.create_dir(folder, recursive=True)
                with files.open_output_stream(identity) as target:
                    target.write(f"{uuid.uuid4().hex}\n".encode())
        except OSError as error:
            reason = str(error).strip().splitlines()[0]
            raise LedgerError(f"tasks cannot write a ledger to {place}: {reason}") from error


class UploadedLedger:
    """Records into closed files at a URL, through this machine's disk."""

    def __init__(self, url: str, process: str, *, upload_s: float = UPLOAD_S) -> None:
        self._url = url
        self._files, self._folder = _file_system(url)
        self._upload_s = upload_s
        self._staging = Path(tempfile.mkdtemp(prefix="twinbus-ledger-"))
        self._stop = threading.Event()
        self._is_warned = False
        self._writer = LedgerWriter(self._staging, process=process, heartbeat_s=IDLE_UPLOAD_S)
        self._thread = threading.Thread(target=self._run, name="twinbus-upload", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._writer.close()
        for again in range(LAST_TRIES):
            if self._upload():
                shutil.rmtree(self._staging, ignore_errors=True)
                return
            if again + 1 < LAST_TRIES:
                threading.Event().wait(LAST_WAIT_S)
        log.error(
            "ledger: uploads to %s fail; the records of this task stay in %s, copy them from there",
            self._url,
            self._staging,
        )

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        """Record one operation; like a LedgerWriter, it returns at once."""
        self._writer.record(operation, at_ms=at_ms, **fields)

    def record_deliveries(
        self,
        operation: str,
        shared: tuple[tuple[str, object], ...],
        at_ms: int | None,
        deliveries: Sequence[tuple[str | None, int, int, int | None]],
    ) -> None:
        """Record an operation on many messages, like a LedgerWriter."""
        self._writer.record_deliveries(operation, shared, at_ms, deliveries)

    def _run(self) -> None:
        while not self._stop.wait(self._upload_s):
            self._writer.hand_over()
            self._upload()

    def _upload(self) -> bool:
        """Upload ended files in order; return whether all were uploaded."""
        for path in sorted(self._staging.glob(f"*{FILE_SUFFIX}")):
            try:
                self._upload_file(path)
            except OSError as error:
                if not self._is_warned:
                    self._is_warned = True
                    log.warning(
                        "ledger: the upload to %s of %s failed: %s", self._url, path.name, error
                    )
                return False
            path.unlink()
        return True

    def _upload_file(self, path: Path) -> None:
        # No reader takes this name for a ledger file: readers see a whole file or none.
        unfinished, name = f"{self._folder}/.{path.name}.draft", f"{self._folder}/{path.name}"
        self._files.create_dir(self._folder, recursive=True)
        with path.open("rb") as source, self._files.open_output_stream(unfinished) as target:
            while block := source.read(_BLOCK_BYTES):
                target.write(block)
        self._files.move(unfinished, name)


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it; LedgerError if pyarrow has none."""
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
