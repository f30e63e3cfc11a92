"""A consumer in a process of its own: it writes what it got to a book, and completes it.

    python -m tests.end_to_end.consuming_program asyncio|blocking BOOK
    celery -A tests.end_to_end.consuming_program worker

It reads both namespaces from the environment, and receives from a queue and two subscriptions of
its own; the Celery worker from its queue. Each line of the book is one event of one message. It is
written at once, so that a killed consumer leaves what it did.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from azure.servicebus.exceptions import ServiceBusError
from celery import Celery

from twinbus import SendAvailabilityOptions, blocking, pair_namespaces
from twinbus.servicebus.twins import DIVERTED, is_of_secondary, own_number, read_divert_mark

BOOK: Final = "CONSUMER_BOOK"
"""The variable that names the book of a Celery worker."""

FAILOVER_S: Final = 5.0
ATTEMPT_S: Final = 5.0
HANDED_OUT: Final = "handed out"
KINDS: Final = ("asyncio", "blocking", "celery")
SUBSCRIPTIONS: Final = ("all", "red")
CELERY_QUEUE: Final = "celery"

SETTINGS: Final[dict[str, Any]] = {
    "failover_interval": FAILOVER_S,
    "attempt_timeout": ATTEMPT_S,
    "ping_primary_interval": 1.0,
    "backlog_queue_count": 1,
    "twins": ["orders.*", "news.*", CELERY_QUEUE],
}


class Place(NamedTuple):
    """Where a consumer receives: a queue, or a subscription of a topic."""

    entity: str
    subscription: str | None = None

    def __str__(self) -> str:
        return self.entity if self.subscription is None else f"{self.entity}/{self.subscription}"


def places(kind: str) -> list[Place]:
    """The places of one consumer; each kind has entities of its own."""
    if kind == "celery":
        return [Place(CELERY_QUEUE)]
    topic = [Place(f"news.{kind}", name) for name in SUBSCRIPTIONS]
    return [Place(f"orders.{kind}"), *topic]


class Book:
    """A file with one line for each event; what is written survives a kill."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, place: object, message_id: str, **more: Any) -> None:
        line = {"event": event, "place": str(place), "id": message_id, "at": time.time(), **more}
        line["process"] = os.getpid()
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def message(self, event: str, place: Place, message: Any, **more: Any) -> None:
        number = message.sequence_number
        text = (message.application_properties or {}).get(DIVERTED.encode())
        mark = read_divert_mark(text)
        self.write(
            event,
            place,
            message.message_id,
            side="secondary" if is_of_secondary(number) else "primary",
            number=own_number(number),
            unanswered=mark is not None and mark.unanswered_since_ms is not None,
            **more,
        )


def sides() -> tuple[str, str]:
    return os.environ["TWINBUS_PRIMARY"], os.environ["TWINBUS_SECONDARY"]


async def consume(book: Book) -> None:
    async with (
        pair_namespaces(*sides(), SendAvailabilityOptions(**SETTINGS)) as pair,
        asyncio.TaskGroup() as group,
    ):
        for place in places("asyncio"):
            group.create_task(read(pair, place, book))


async def read(pair: Any, place: Place, book: Book) -> None:
    async with receiver_of(pair, place) as receiver:
        async for message in receiver:
            book.message(HANDED_OUT, place, message)
            try:
                await receiver.complete_message(message)
            except ServiceBusError as error:
                book.message("not completed", place, message, error=repr(error))
            else:
                book.message("completed", place, message)


def receiver_of(pair: Any, place: Place) -> Any:
    if place.subscription is None:
        return pair.get_queue_receiver(place.entity)
    return pair.get_subscription_receiver(place.entity, place.subscription)


def consume_blocking(book: Book) -> None:
    with blocking.pair_namespaces(*sides(), SendAvailabilityOptions(**SETTINGS)) as pair:
        threads = [
            threading.Thread(target=read_blocking, args=(pair, place, book), daemon=True)
            for place in places("blocking")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def read_blocking(pair: Any, place: Place, book: Book) -> None:
    with receiver_of(pair, place) as receiver:
        for message in receiver:
            book.message(HANDED_OUT, place, message)
            try:
                receiver.complete_message(message)
            except ServiceBusError as error:
                book.message("not completed", place, message, error=repr(error))
            else:
                book.message("completed", place, message)


app = Celery("consumer", broker="twinbus://")
app.conf.update(
    broker_transport="twinbus.kombu:Transport",
    broker_transport_options={**SETTINGS, "send_timeout": 60},
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    task_acks_late=True,
    worker_send_task_events=False,
)


@app.task(name="record")
def record(order: str) -> None:
    """Write to the book; the worker acknowledges it afterwards."""
    Book(os.environ[BOOK]).write(HANDED_OUT, CELERY_QUEUE, order)


def lines_of(path: Any) -> Iterator[dict[str, Any]]:
    """The events of a book; a line that is being written is left for later."""
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if line.endswith("\n"):
            yield json.loads(line)


def main() -> None:
    kind, path = sys.argv[1:]
    if kind == "asyncio":
        asyncio.run(consume(Book(path)))
    else:
        consume_blocking(Book(path))


if __name__ == "__main__":
    main()
