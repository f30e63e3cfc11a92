"""Peeks into every backlog queue of a secondary, for `report conservation`; changes nothing."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.client.administration import list_backlog_queues
from twinbus.client.peeking import open_connection, peek
from twinbus.namespace.access import endpoint_of
from twinbus.pipeline.reports.documents import Sighting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from twinbus.namespace.namespace import Namespace
    from twinbus.pipeline.reports.conservation import BacklogSnapshot

PLACES: Final = {False: "waiting", True: "dead_lettered"}
"""`Sighting.place` by whether the message is a dead letter."""


class BacklogScan:
    """The messages that were found, in a file until Spark reads it: they may not fit in memory.

    The ledger is read before the peek and after it. What was in the backlog by the first reading,
    was not found, and is not accounted for by the second, is lost: no clock has a part in it.
    """

    def __init__(self, secondary: str | Namespace) -> None:
        self._endpoint = endpoint_of(secondary)
        self._directory = tempfile.TemporaryDirectory(prefix="twinbus-look-")
        self._file = Path(self._directory.name) / "sightings.json"
        self._began_ms = 0
        self._labels: frozenset[str] = frozenset()
        self.awaited: DataFrame | None = None
        """What the ledger said was in the backlog before the peek."""

    async def peek(self) -> None:
        """Peek into every backlog queue and its dead letters; SyphonError if that fails."""
        self._began_ms = int(time.time() * 1000)
        queues = await list_backlog_queues(self._endpoint, None)
        self._labels = frozenset(map(_label_of, queues))
        with self._file.open("w") as file:
            async with open_connection(self._endpoint) as line:
                for queue in queues:
                    for dead_letters, place in PLACES.items():
                        found = peek(line, queue, dead_letters=dead_letters)
                        async with aclosing(found) as messages:
                            async for message in messages:
                                if message.message_id is not None:
                                    row = Sighting(
                                        *(message.path or "", message.message_id, place),
                                        primary_label=_label_of(queue),
                                    )
                                    file.write(json.dumps(row._asdict()) + "\n")

    def sightings(self) -> Iterator[Sighting]:
        with self._file.open() as file:
            for line in file:
                yield Sighting(**json.loads(line))

    def snapshot(self, spark: SparkSession) -> BacklogSnapshot:
        from twinbus.pipeline.reports.conservation import BacklogSnapshot
        from twinbus.pipeline.spark.session import reads_local_files
        from twinbus.pipeline.tables.schemas import SIGHTINGS

        if reads_local_files(spark):
            found = spark.read.json(f"file:{self._file}", schema=SIGHTINGS)
        else:
            # Executors on other machines do not see the file.
            found = spark.createDataFrame(list(self.sightings()), SIGHTINGS)
        return BacklogSnapshot(found, self._began_ms, self._labels, self.awaited)

    def close(self) -> None:
        self._directory.cleanup()


def _label_of(queue: str) -> str:
    """Return the label of the primary, with which the path of a backlog queue begins."""
    return queue.lower().partition("/")[0]
