"""A look into every backlog queue of a secondary, for `report conservation`: nothing is touched."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.console.namespaces import parse_side
from twinbus.namespace.endpoint import endpoint_of
from twinbus.pipeline.reports.documents import Sighting
from twinbus.syphon.connection.peeking import backlog_queues_of, dialled, peek

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.pipeline.reports.conservation import BacklogSnapshot

__all__ = ["BacklogScan"]

PLACES: Final = {False: "waiting", True: "dead_lettered"}
"""What a message is called by whether it lies among dead letters."""


class BacklogScan:
    """What was seen, in a file until Spark reads it: a backlog can be longer than memory.

    Tables must be read after the look: what was sent before it is then in them.
    """

    def __init__(self, secondary: str) -> None:
        self._endpoint = endpoint_of(parse_side(secondary, "secondary"))
        self._directory = tempfile.TemporaryDirectory(prefix="twinbus-look-")
        self._file = Path(self._directory.name) / "sightings.json"
        self._began_ms = 0

    async def peek(self) -> None:
        """Look into every backlog queue and its dead letters; SyphonError, in one line, if not."""
        self._began_ms = int(time.time() * 1000)
        queues = await backlog_queues_of(self._endpoint, None)
        with self._file.open("w") as file:
            async with dialled(self._endpoint) as line:
                for queue in queues:
                    for dead_letters, place in PLACES.items():
                        found = peek(line, queue, dead_letters=dead_letters)
                        async with aclosing(found) as messages:
                            async for message in messages:
                                if message.message_id is not None:
                                    row = Sighting(message.path or "", message.message_id, place)
                                    file.write(json.dumps(row._asdict()) + "\n")

    def seen(self) -> Iterator[Sighting]:
        """Each message that was seen."""
        with self._file.open() as file:
            for line in file:
                yield Sighting(**json.loads(line))

    def look(self, spark: SparkSession) -> BacklogSnapshot:
        """What was seen, for Spark."""
        from twinbus.pipeline.reports.conservation import BacklogSnapshot
        from twinbus.pipeline.tables.schemas import SIGHTINGS

        if (spark.sparkContext.master or "").startswith("local"):
            seen = spark.read.json(f"file:{self._file}", schema=SIGHTINGS)
        else:
            # Executors on other machines do not see the file.
            seen = spark.createDataFrame(list(self.seen()), SIGHTINGS)
        return BacklogSnapshot(seen, self._began_ms)

    def close(self) -> None:
        """Remove the file."""
        self._directory.cleanup()
