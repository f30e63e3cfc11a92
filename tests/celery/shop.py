"""A Celery application on the pair `eu` of the settings file; its worker runs in the tests.

Its broker URL and the options of the pair are all that is not plain Celery.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from celery import Celery

from tests.processes import until

PATIENCE_S: Final = 120.0

# At INFO the SDK logs every request and every state of a link.
logging.getLogger("azure").setLevel(logging.CRITICAL)

app = Celery("shop", broker="twinbus://eu")
app.conf.update(
    broker_transport="twinbus.kombu:Transport",
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "backlog_queue_count": 1,
        "failover_interval": 1,
        "ping_primary_interval": 1,
        "attempt_timeout": 5,
        "enable_syphon": True,
        "syphon_poll": 5,
        "send_timeout": 90,
    },
    task_ignore_result=True,
    worker_send_task_events=False,
)


@app.task
def record(order: str) -> None:
    """Write an order to the book of orders."""
    with Path(os.environ["SHOP_BOOK"]).open("a") as book:
        book.write(f"{order}\n")


@app.task
def record_later(order: str, signal: str) -> None:
    """Wait until the file `signal` exists, then send a task from this forked process."""
    record.run(f"{order} begins")
    until(Path(signal).exists, PATIENCE_S)
    record.delay(order)
