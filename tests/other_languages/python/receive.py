"""Receives and completes messages with the SDK's defaults until its input ends.

Prints one JSON line for each message before it completes it, and one when it has. The argument is a
queue, or TOPIC/subscriptions/NAME. An error is that of the completion, or without a number of the
receive.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from azure.servicebus import ServiceBusClient

AT_ONCE = 10
WAIT_S = 2.0
AFTER_ERROR_S = 0.2


def main() -> None:
    [entity] = sys.argv[1:]
    topic, _, name = entity.partition("/subscriptions/")
    stopping = threading.Event()
    threading.Thread(target=_wait_for_end_of_input, args=(stopping,), daemon=True).start()
    text = os.environ["SERVICEBUS_CONNECTION_STRING"]
    with (
        ServiceBusClient.from_connection_string(text) as client,
        (
            client.get_subscription_receiver(topic, name)
            if name
            else client.get_queue_receiver(entity)
        ) as receiver,
    ):
        while not stopping.is_set():
            try:
                messages = receiver.receive_messages(AT_ONCE, max_wait_time=WAIT_S)
            except Exception as error:  # noqa: BLE001  # the test wants each
                _say(error, at_ms=_now_ms())
                stopping.wait(AFTER_ERROR_S)
                continue
            now_ms = _now_ms()
            for message in messages:
                number = message.sequence_number
                _say(text=str(message), id=str(message.message_id), number=number, at_ms=now_ms)
                failed: Exception | None = None
                try:
                    receiver.complete_message(message)
                except Exception as error:  # noqa: BLE001  # the test wants each
                    failed = error
                _say(failed, settled=True, number=number)


def _say(error: Exception | None = None, **line: Any) -> None:
    if error is not None:
        line["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(line), flush=True)  # noqa: T201


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _wait_for_end_of_input(stopping: threading.Event) -> None:
    sys.stdin.read()
    stopping.set()


if __name__ == "__main__":
    main()
