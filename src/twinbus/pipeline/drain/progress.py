"""How far a drain on Spark has come, by what its queues hold, and what it did, by its ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from twinbus.client.administration import CountsUnavailable, QueueCounts, counts_of
from twinbus.client.peeking import count_matching
from twinbus.errors import SyphonError
from twinbus.ledger.record import FILE_SUFFIX, LedgerError
from twinbus.loops import run_anywhere
from twinbus.namespace.endpoint import Endpoint
from twinbus.pipeline.spark.session import session_for_tables
from twinbus.pipeline.tables.bronze import read_ledger
from twinbus.syphon.host import PEEK_AGAIN_S, DrainProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DrainBacklog:
    """The queues of one drain and what was last seen in them."""

    def __init__(
        self,
        endpoint: Endpoint,
        queues: Sequence[str],
        on_progress: Callable[[DrainProgress], None] | None,
        only: frozenset[str] | None = None,
    ) -> None:
        self.queues = queues
        self.waiting: int | None = None
        """What was left at the last look; None: no answer has come yet."""
        self._endpoint = endpoint
        self._on_progress = on_progress
        self._only = only
        self._tell_at = float("-inf")
        self._dead_lettered = 0
        self._first: tuple[int, int] | None = None
        """Waiting and dead-lettered at the first look."""

    def look(self) -> int:
        """What waits now; SyphonError, CountsUnavailable as `counts_of` raises them.

        Of some destinations only, what waits is counted by peeking.
        """
        counts = run_anywhere(self._ask())
        self.waiting = sum(count.waiting for count in counts)
        if self._only is not None:
            self.waiting = self._peek(self._only)
        self._dead_lettered = sum(count.dead_lettered for count in counts)
        if self._first is None:
            self._first = self.waiting, self._dead_lettered
        return self.waiting

    def _peek(self, only: frozenset[str]) -> int:
        try:
            return sum(run_anywhere(count_matching(self._endpoint, self.queues, only)).values())
        except SyphonError as error:
            if self._first is None:
                # Before anything starts: most likely a right that is missing.
                raise
            raise CountsUnavailable(str(error)) from error

    def tell(self, problems: tuple[str, ...], *, is_over: bool = False) -> None:
        """Report the progress; `problems` are what the tasks report."""
        now = time.monotonic()
        if self._on_progress is None or (now < self._tell_at and not is_over):
            return
        # Peeking looks at all that the queues hold.
        self._tell_at = now + (0.0 if self._only is None else PEEK_AGAIN_S)
        try:
            waiting = self.look()
        except (CountsUnavailable, SyphonError):
            # The tasks know better what is wrong, and say so.
            return
        assert self._first is not None
        # By what is gone: a message that comes meanwhile hides one that went.
        dead_lettered = max(0, self._dead_lettered - self._first[1])
        forwarded = max(0, self._first[0] - waiting - dead_lettered)
        self._on_progress(
            DrainProgress(
                waiting=waiting, forwarded=forwarded, dead_lettered=dead_lettered, problems=problems
            )
        )

    async def _ask(self) -> list[QueueCounts]:
        return await asyncio.gather(*(counts_of(self._endpoint, queue) for queue in self.queues))


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainStatistics:
    """Messages by what became of them; attempts that died are in it, as far as they wrote."""

    forwarded: int = 0
    """Accepted by the primary. More than completed: sent, and the attempt died before the rest."""
    completed: int = 0
    dead_lettered: int = 0


@dataclass(frozen=True, slots=True)
class DrainRun:
    """A drain that has ended."""

    spark: SparkSession
    name: str
    """The names of its ledger files begin with it."""
    ledger: str | None

    def statistics(self) -> DrainStatistics | None:
        """What it did, by the ledger; None where it wrote none. Runs a Spark job."""
        if self.ledger is None:
            return None
        place = self.ledger.removeprefix("file://")
        session = session_for_tables(self.spark)
        try:
            lines = read_ledger(session, place, files=f"{self.name}-*{FILE_SUFFIX}*")
        except LedgerError:
            # Its tasks had nothing to write.
            return DrainStatistics()
        done = lines.where(F.col("outcome") == "ok").groupBy("operation").count()
        counts = {row["operation"]: row["count"] for row in done.collect()}
        return DrainStatistics(
            forwarded=counts.get("forward", 0),
            completed=counts.get("complete", 0),
            dead_lettered=counts.get("dead_letter", 0),
        )
