"""The ledger of one task, at a place that all executors reach: a directory, or a URL.

A directory (on one machine, or mounted on all) is written to as any process does; what was written
survives the task's death. To a URL a task brings closed files: it writes them on its own disk and
carries them over every few seconds and at its end, so that a death costs no more than those; the
last one that was carried says that there is another (`ledger.facts`). URLs are those that pyarrow
knows: hdfs, s3 (also as s3a), gs, abfs and abfss.
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

CARRY_S: Final = 10.0
"""Between two files: the records that the loss of an executor's disk can cost."""

IDLE_CARRY_S: Final = 300.0
"""The same while nothing is recorded: the file says that the task lives."""

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


def prepare_place(place: str | None) -> None:
    """Give a ledger at a URL its identity, for all tasks; LedgerError: they cannot write there.

    A directory gets it from its first writer.
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


class CarriedLedger:
    """Records into closed files at a URL, through this machine's disk."""

    def __init__(self, url: str, process: str, *, carry_s: float = CARRY_S) -> None:
        self._url = url
        self._files, self._folder = _file_system(url)
        self._carry_s = carry_s
        self._staging = Path(tempfile.mkdtemp(prefix="twinbus-ledger-"))
        self._stop = threading.Event()
        self._is_told = False
        self._writer = LedgerWriter(self._staging, process=process, heartbeat_s=IDLE_CARRY_S)
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
        self._writer.record(operation, at_ms=at_ms, **fields)

    def record_deliveries(
        self,
        operation: str,
        shared: tuple[tuple[str, object], ...],
        at_ms: int | None,
        deliveries: Sequence[tuple[str | None, int, int, int | None]],
    ) -> None:
        """Note an operation on many messages, as a LedgerWriter does."""
        self._writer.record_deliveries(operation, shared, at_ms, deliveries)

    def _run(self) -> None:
        while not self._stop.wait(self._carry_s):
            self._writer.hand_over()
            self._carry()

    def _carry(self) -> bool:
        """Bring what is ended to the URL, in its order; False: it does not take it now."""
        for path in sorted(self._staging.glob(f"*{FILE_SUFFIX}")):
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
        unfinished, name = f"{self._folder}/.{path.name}.draft", f"{self._folder}/{path.name}"
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
