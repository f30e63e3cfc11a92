"""Receives and completes messages with the SDK's defaults until its input ends.

Prints one JSON line for each. The argument is a queue, or TOPIC/subscriptions/NAME. An error is
that of the completion, or without a text of the receive.
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
                _say(_now_ms(), error=error)
                stopping.wait(AFTER_ERROR_S)
                continue
            now_ms = _now_ms()
            for message in messages:
                failed: Exception | None = None
                try:
                    receiver.complete_message(message)
                except Exception as error:  # noqa: BLE001  # the test wants each
                    failed = error
                _say(now_ms, str(message), message.message_id, message.sequence_number, failed)


def _say(
    at_ms: int, text: str = "", name: Any = "", number: Any = 0, error: Exception | None = None
) -> None:
    line = {"text": text, "id": str(name), "number": number, "at_ms": at_ms}
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
