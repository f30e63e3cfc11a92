"""pytest plugin: the SDK's own tests with every sender replaced by that of a pair.

`.ci/conformance.py --paired` loads it beside the plugin of the suite.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.paired_clients import (
    PairedAsyncClient,
    PairedClient,
    replace_clients,
)


class SendingClient(PairedClient):
    """The SDK's client, with paired senders."""

    def get_queue_sender(self, queue_name: str, **options: Any) -> Any:
        return self.started().get_queue_sender(queue_name, **options)

    def get_topic_sender(self, topic_name: str, **options: Any) -> Any:
        return self.started().get_topic_sender(topic_name, **options)


class SendingAsyncClient(PairedAsyncClient):
    """The same with asyncio."""

    def get_queue_sender(self, queue_name: str, **options: Any) -> Any:
        return self.made("get_queue_sender", queue_name, **options)

    def get_topic_sender(self, topic_name: str, **options: Any) -> Any:
        return self.made("get_topic_sender", topic_name, **options)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    replace_clients(items, SendingClient, SendingAsyncClient)
