"""Sends numbered messages with the SDK's defaults until its input ends.

Prints one JSON line for each send. The arguments are the queue and the beginning of every message's
text. In turn: one message with an id of its own, one without, a batch with ids, a batch without.
Those with ids are red, the others blue, for the rule of a subscription.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender

IN_BATCH = 3
PAUSE_S = 0.05


def main() -> None:
    queue, name = sys.argv[1:]
    stopping = threading.Event()
    threading.Thread(target=_wait_for_end_of_input, args=(stopping,), daemon=True).start()
    texts = (f"{name}-{number}" for number in itertools.count())
    text = os.environ["SERVICEBUS_CONNECTION_STRING"]
    with (
        ServiceBusClient.from_connection_string(text) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for turn in itertools.count():
            if stopping.wait(PAUSE_S):
                return
            print(json.dumps(_turn(sender, turn, texts)), flush=True)  # noqa: T201


def _turn(sender: ServiceBusSender, turn: int, texts: Iterator[str]) -> dict[str, object]:
    """Send what is due, and say what became of it."""
    has_ids, is_batch = turn % 2 == 0, turn % 4 >= 2
    mine = list(itertools.islice(texts, IN_BATCH if is_batch else 1))
    line: dict[str, object] = {"texts": mine, "has_ids": has_ids, "began_ms": _now_ms()}
    color = "red" if has_ids else "blue"
    messages = [
        ServiceBusMessage(
            one, message_id=one if has_ids else None, application_properties={"color": color}
        )
        for one in mine
    ]
    try:
        if is_batch:
            batch = sender.create_message_batch()
            for message in messages:
                batch.add_message(message)
            sender.send_messages(batch)
        else:
            sender.send_messages(messages[0])
    except Exception as error:  # noqa: BLE001  # the test wants each
        line["error"] = f"{type(error).__name__}: {error}"
    line["ended_ms"] = _now_ms()
    return line


def _wait_for_end_of_input(stopping: threading.Event) -> None:
    sys.stdin.read()
    stopping.set()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main()
