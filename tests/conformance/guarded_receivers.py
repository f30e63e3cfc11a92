"""pytest plugin: the SDK's own tests with every receiver replaced by a guarded one.

`.ci/conformance.py --guarded` loads it beside the plugin of the suite. The pair's secondary idles:
no entity has a twin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.paired_clients import (
    PairedAsyncClient,
    PairedClient,
    replace_clients,
)


def opened_by_private_name(receiver: Any, enter: Callable[[], Any]) -> Any:
    """Let tests open it as they open the SDK's own where they expect a refusal."""
    receiver._open_with_retry = enter
    return receiver


class ReceivingClient(PairedClient):
    """The SDK's client, with guarded receivers."""

    def get_queue_receiver(self, queue_name: str, **options: Any) -> Any:
        receiver = self.started().get_queue_receiver(queue_name, guard=True, **options)
        return opened_by_private_name(receiver, receiver.__enter__)

    def get_subscription_receiver(
        self, topic_name: str, subscription_name: str, **options: Any
    ) -> Any:
        get = self.started().get_subscription_receiver
        return get(topic_name, subscription_name, guard=True, **options)


class ReceivingAsyncClient(PairedAsyncClient):
    """The same with asyncio."""

    def get_queue_receiver(self, queue_name: str, **options: Any) -> Any:
        receiver = self.made("get_queue_receiver", queue_name, guard=True, **options)
        return opened_by_private_name(receiver, receiver.__aenter__)

    def get_subscription_receiver(
        self, topic_name: str, subscription_name: str, **options: Any
    ) -> Any:
        names = (topic_name, subscription_name)
        return self.made("get_subscription_receiver", *names, guard=True, **options)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    replace_clients(items, ReceivingClient, ReceivingAsyncClient)
