"""Ten backlog queues drained by a Spark job against the same by the relay alone.

1 KB messages, durable at both ends. Spark has started, and its Python workers have been used once,
before anything is measured; the relay is one process that runs all ten queues. Same brokers.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.harness import NotMeasured, Progress, Sides
from bench.relay_world import Mover, RelayWorld, relay_world, scaled
from twinbus.pipeline.spark.session import SparkStartError, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

UNIT = "messages/s"
MESSAGES = 100_000
"""Of one round: seconds of work, beside which the half second that a Spark job takes is little."""
QUEUES = 10


@contextmanager
def sides(progress: Progress) -> Iterator[Sides]:
    """Both brokers, a Spark session and the relay, running."""
    progress("starting Spark")
    try:
        session = spark_session()
        spark = session.__enter__()
    except SparkStartError as error:
        raise NotMeasured(str(error)) from error
    try:
        progress("starting two brokers")
        with relay_world() as world, Mover() as relay:
            slots = spark.sparkContext.defaultParallelism
            yield Sides(
                ours=lambda: spark_round(spark, world, scaled(MESSAGES)),
                peer=lambda: world.move(relay, scaled(MESSAGES), queues=QUEUES).rate,
                note=f"{QUEUES} queues; Spark {spark.version} on {slots} slots; the relay in one "
                "process; the peer is our own relay",
            )
    finally:
        session.__exit__(None, None, None)


def spark_round(spark: SparkSession, world: RelayWorld, messages: int) -> float:
    from twinbus.pipeline.drain.drain import drain

    with world.backlog(messages, queues=QUEUES) as paths:
        began = time.perf_counter()
        drain(spark, world.primary.connection_string, world.secondary.connection_string, paths)
        return messages / (time.perf_counter() - began)
