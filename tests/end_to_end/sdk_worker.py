"""A program that uses the official SDK while its broker is killed, and prints what it was told.

    python -m tests.end_to_end.sdk_worker CONNECTION_STRING PREFIX

Each line of its output is a word of `History` and the key of a message. It ends on SIGTERM. It has
a process of its own because the SDK would get no share of a loaded test's interpreter.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections.abc import Iterator

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.official_sdk import client

QUEUE = "sdk"
BETWEEN_TRIES_S = 0.05


class Worker:
    """Sends, receives and completes, a message at a time."""

    def __init__(self, connection_string: str, prefix: str) -> None:
        self.is_stopping = False
        self._connection_string = connection_string
        self._keys: Iterator[str] = (f"{prefix}{number}" for number in itertools.count())

    def run(self) -> None:
        """Work until told to stop; after a failure, with a new client."""
        while not self.is_stopping:
            # A client whose broker died is dropped, not closed: closing takes it seconds.
            connection = client(self._connection_string, try_timeout=5)
            try:
                self._work(connection)
                connection.close()
            except ServiceBusError:
                time.sleep(BETWEEN_TRIES_S)

    def _work(self, connection: ServiceBusClient) -> None:
        sender = connection.get_queue_sender(QUEUE)
        receiver = connection.get_queue_receiver(QUEUE)
        while not self.is_stopping:
            key = next(self._keys)
            say("attempt", key)
            sender.send_messages(ServiceBusMessage("from the SDK", message_id=key))
            say("acknowledge", key)
            for message in receiver.receive_messages(1, max_wait_time=1):
                received = str(message.message_id)
                say("arrive", received)
                say("ask", received)
                receiver.complete_message(message)
                say("confirm", received)


def say(word: str, key: str) -> None:
    sys.stdout.write(f"{word} {key}\n")
    sys.stdout.flush()


def main() -> None:
    worker = Worker(sys.argv[1], sys.argv[2])

    def stop(*_: object) -> None:
        worker.is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    worker.run()


if __name__ == "__main__":
    main()
