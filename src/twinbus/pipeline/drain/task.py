"""One task of a drain: drains a group of backlog queues with the relay, on an executor.

It needs pyarrow, which Spark has, and this package, which the driver ships; not the SDK. WebSocket
needs aiohttp there, and a credential of azure-identity that package.

A side of the pair is shipped to it as a description, or as a function that returns one. A
description such as `sb://contoso.servicebus.windows.net?credential=managed-identity` holds no
secret: each machine opens the credential with its own identity, file or variable. A connection
string is a secret and is shipped with the task; `credential=env:NAME` is not.

A task writes its ledger to a directory (on one machine, or mounted on all) like any process; its
records survive its death. To a URL it uploads closed files: it writes them on its own disk and
uploads them every few seconds and at its end, so that its death costs only the records since then;
the last uploaded file says that another follows (`ledger.facts`). pyarrow knows the URLs of hdfs,
s3 (also as s3a), gs, abfs and abfss.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from twinbus.client.peeking import open_connection
from twinbus.errors import SyphonError
from twinbus.ledger import LedgerError, LedgerWriter, NullLedger, process_name
from twinbus.ledger.files import ID_NAME
from twinbus.ledger.record import FILE_SUFFIX
from twinbus.loops import run_alone
from twinbus.namespace.access import Endpoint, NamespaceAccess, endpoint_of
from twinbus.namespace.address import DIRECT
from twinbus.namespace.credentials import route_of
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.pipeline.drain.driver_link import DriverAddress, DriverLink
from twinbus.pipeline.drain.ledger_place import file_system
from twinbus.pipeline.drain.place_link import PlaceAddress, PlaceLink
from twinbus.pipeline.spark.session import is_url
from twinbus.syphon.bookkeeping import RelayLedger
from twinbus.syphon.core.pacing import Rate
from twinbus.syphon.core.pump import IntakeLimits
from twinbus.syphon.draining import DrainProgress
from twinbus.syphon.draining import drain as drain_here
from twinbus.syphon.host import SyphonHost

log = logging.getLogger("twinbus.pipeline")

UPLOAD_S: Final = 10.0
"""Time between two uploads: the loss of an executor's disk costs the records since the last one."""

IDLE_UPLOAD_S: Final = 300.0
"""The same while nothing is recorded: the file shows that the task is alive."""

LAST_TRIES: Final = 3
"""Tries to upload at the end of a task, before its files are left on its disk."""
LAST_WAIT_S: Final = 2.0

_BLOCK_BYTES: Final = 1024 * 1024

SEPARATOR: Final = "\n"
"""Separates the queues of a group; no entity path contains it."""

REPORT_S: Final = 1.0
"""Time between two reports of a continuous task about its problems."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainTask:
    """The settings of a task; pickled for the executors, so it holds only values."""

    primary: ShippedSide = field(repr=False)
    secondary: ShippedSide = field(repr=False)
    options: SendAvailabilityOptions = field(default_factory=SendAvailabilityOptions)
    run: str = "drain"
    """Name of the drain; the names of its ledger files begin with it."""
    ledger: str | None = None
    limits: IntakeLimits | None = None
    lease: bool | None = None
    """Whether a queue is pumped only under its lease; None: if the order is strict."""
    only: tuple[str, ...] | None = None
    """The destinations to serve; None: all."""
    rate_per_s: float | None = None
    """This task's share of the rate; None: as fast as the primary accepts."""
    turn_s: float | None = None
    """How long it works; None: until its queues are empty."""
    driver: DriverAddress | PlaceAddress | None = None
    """How its driver ends it and hears of problems; None: Spark kills it."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Drain the queues of each row that comes; for `mapInArrow`, with its record batches.

        The rows are returned unchanged: the results are in the ledger.
        """
        importlib.import_module("pyarrow")
        for batch in batches:
            for group in batch.column(0).to_pylist():
                self.drain(group.split(SEPARATOR))
            yield batch

    def drain(self, queues: Sequence[str]) -> None:
        """Drain these queues in this process, until they are empty or the turn is over."""
        name = self._process_name()
        with task_ledger(self.ledger, name) as ledger:
            run_alone(self._work(queues, ledger, self._driver_link(name)))

    def _driver_link(self, name: str) -> DriverLink | PlaceLink:
        if isinstance(self.driver, PlaceAddress):
            return PlaceLink(self.driver, name)
        return DriverLink(self.driver)

    def _process_name(self) -> str:
        """Return a name for this attempt: each attempt of a task writes its own files."""
        from pyspark import TaskContext

        context = TaskContext.get()
        part = "0-0" if context is None else f"{context.partitionId()}-{context.attemptNumber()}"
        return process_name(f"{self.run}-{part}")

    async def _work(
        self, queues: Sequence[str], ledger: RelayLedger, link: DriverLink | PlaceLink
    ) -> None:
        async with link as driver_link:
            make = self._until_empty if self.turn_s is None else self._for_a_turn
            work = asyncio.ensure_future(make(queues, ledger, driver_link))
            released = asyncio.ensure_future(driver_link.released())
            await asyncio.wait({work, released}, return_when=asyncio.FIRST_COMPLETED)
            released.cancel()
            # Both kinds of work settle messages in flight when they are cancelled.
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _until_empty(
        self, queues: Sequence[str], ledger: RelayLedger, driver_link: DriverLink | PlaceLink
    ) -> None:
        def report(progress: DrainProgress) -> None:
            driver_link.report(progress.problems)

        primary, secondary = open_side(self.primary), open_side(self.secondary)
        await drain_here(
            primary, secondary, queues, ledger=ledger, on_progress=report, **self._bounds()
        )

    async def _for_a_turn(
        self, queues: Sequence[str], ledger: RelayLedger, driver_link: DriverLink | PlaceLink
    ) -> None:
        assert self.turn_s is not None
        primary, secondary = open_side(self.primary), open_side(self.secondary)
        host = SyphonHost(primary, secondary, queues, ledger=ledger, **self._bounds())
        ends = time.monotonic() + self.turn_s
        await host.start()
        try:
            while (left_s := ends - time.monotonic()) > 0:
                driver_link.report(_problems(host))
                await asyncio.sleep(min(REPORT_S, left_s))
        finally:
            await host.close()

    def _bounds(self) -> dict[str, Any]:
        return {
            "options": self.options,
            "limits": self.limits,
            "lease": self.lease,
            "only": self.only,
            "rate": Rate(self.rate_per_s),
        }


PROBED: Final = "problem string"


@dataclass(frozen=True, slots=True)
class NetworkProbe:
    """Tells from a task why it does not reach a namespace; "" if it does. For `mapInArrow`."""

    side: ShippedSide = field(repr=False)

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        pa: Any = importlib.import_module("pyarrow")
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"problem": [self._problem()]})

    def _problem(self) -> str:
        try:
            asyncio.run(self._connect())
        except Exception as error:  # noqa: BLE001 - the driver raises it
            return (str(error).strip() or repr(error)).splitlines()[0]
        return ""

    async def _connect(self) -> None:
        # No count of messages: that needs more rights than a task has to have.
        async with open_connection(open_side(self.side)):
            pass


def _problems(host: SyphonHost) -> tuple[str, ...]:
    found = [
        f"{what}: {why}"
        for status in host.status().values()
        for what, why in status.obstacles.items()
    ]
    return tuple(dict.fromkeys(found))


ShippedSide = NamespaceAccess | Callable[[], Any]
"""A side to open in a task. A function returns a Namespace, or a text that a pair accepts."""


def shipped_side(role: str, given: object) -> ShippedSide:
    """Return a side in a form that can be shipped; SyphonError if it has none."""
    if isinstance(given, NamespaceAccess):
        return given
    if isinstance(given, Namespace):
        if given.access is not None:
            return given.access
        if given.connection_string is not None and given.route == DIRECT:
            return NamespaceAccess.parse(given.connection_string, name=given.label)
    elif isinstance(given, str):
        try:
            return NamespaceAccess.parse(given)
        except ValueError as error:
            raise SyphonError(f"the {role}: {error}") from None
    elif callable(given):
        return given
    raise SyphonError(
        f"the {role} needs a connection string, sb://HOST?credential=SOURCE, or a function that"
        f" returns a Namespace: tasks sign in by themselves, on other machines; got"
        f" {type(given).__name__}"
    )


def open_side(side: ShippedSide) -> Endpoint:
    """Return the endpoint of a side, its credential opened on this machine."""
    if isinstance(side, NamespaceAccess) and side.connection_string:
        found = Endpoint.parse(side.connection_string)
        return replace(found, name=side.name or "", route=route_of(side))
    made = side if isinstance(side, NamespaceAccess) else side()
    return endpoint_of(Namespace.of(made))


@contextlib.contextmanager
def task_ledger(place: str | None, process: str) -> Iterator[RelayLedger]:
    """Yield a ledger; afterwards it is closed, and its files are at their place."""
    if not place:
        yield NullLedger()
        return
    kept: UploadedLedger | LedgerWriter
    kept = UploadedLedger(place, process) if is_url(place) else LedgerWriter(place, process=process)
    with kept as writer:
        yield writer


def prepare_place(place: str | None) -> None:
    """Give a ledger at a URL its id, for all tasks; LedgerError if they cannot write there.

    A directory gets its id from its first writer.
    """
    if place and is_url(place):
        identify(place)


def identify(url: str) -> None:
    """Give the ledger at a URL its id, if it has none."""
    files, folder = file_system(url)
    identity = f"{folder}/{ID_NAME}"
    try:
        if not files.get_file_info(identity).is_file:
            files.create_dir(folder, recursive=True)
            with files.open_output_stream(identity) as target:
                target.write(f"{uuid.uuid4().hex}\n".encode())
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise LedgerError(f"tasks cannot write a ledger to {url}: {reason}") from error


class UploadedLedger:
    """A LedgerWriter whose closed files go to a URL, through this machine's disk."""

    def __init__(
        self,
        url: str,
        process: str,
        *,
        upload_s: float = UPLOAD_S,
        last_wait_s: float = LAST_WAIT_S,
    ) -> None:
        self._url = url
        self.files, self._folder = file_system(url)
        self._upload_s, self._last_wait_s = upload_s, last_wait_s
        self._staging = Path(tempfile.mkdtemp(prefix="twinbus-ledger-"))
        self._stop = threading.Event()
        self._is_warned = False
        self._writer = LedgerWriter(self._staging, process=process, heartbeat_s=IDLE_UPLOAD_S)
        self._thread = threading.Thread(target=self._run, name="twinbus-upload", daemon=True)

    def __enter__(self) -> LedgerWriter:
        self._thread.start()
        return self._writer

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._writer.close()
        for again in range(LAST_TRIES):
            if self.upload():
                shutil.rmtree(self._staging, ignore_errors=True)
                return
            if again + 1 < LAST_TRIES:
                threading.Event().wait(self._last_wait_s)
        log.error(
            "ledger: uploads to %s fail; the records of this task stay in %s, copy them from there",
            self._url,
            self._staging,
        )

    def _run(self) -> None:
        while not self._stop.wait(self._upload_s):
            self._writer.hand_over()
            self.upload()

    def upload(self) -> bool:
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
        self.files.create_dir(self._folder, recursive=True)
        with path.open("rb") as source, self.files.open_output_stream(unfinished) as target:
            while block := source.read(_BLOCK_BYTES):
                target.write(block)
        self.files.move(unfinished, name)
