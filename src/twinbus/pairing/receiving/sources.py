"""Where a processor gets its receivers: a pair, a client of the SDK, or one plain namespace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from azure.servicebus.aio import ServiceBusClient

from twinbus.namespace.namespace import Namespace
from twinbus.pairing.receiving.processor import Processor
from twinbus.pairing.sdk.sdk_cleanup import close_sdk_client
from twinbus.servicebus.names import subscription_path

if TYPE_CHECKING:
    from twinbus.pairing.core.processing import ProcessOptions
    from twinbus.pairing.receiving.handling import Handler


def process(
    namespace: str | Namespace | ServiceBusClient,
    entity_name: str,
    handler: Handler,
    *,
    subscription: str | None = None,
    **options: Unpack[ProcessOptions],
) -> Processor:
    """Run `handler` for each message of a queue, or of a topic's subscription, without a pair.

    `namespace` is a connection string, sb://HOST?credential=SOURCE, a Namespace, or a client of
    `azure.servicebus.aio`, which stays open at the end.
    """
    if isinstance(namespace, ServiceBusClient):
        name, get_receiver = receivers_of(namespace, entity_name, subscription)
        return Processor(get_receiver, handler, name=name, **options)
    client = OwnedClient(namespace_of(namespace))
    name, get_receiver = receivers_of(client, entity_name, subscription)
    return Processor(get_receiver, handler, name=name, on_stopped=client.close, **options)


def namespace_of(given: Any) -> Namespace:
    """Return the namespace that a user gives to `process`."""
    if not isinstance(given, str | Namespace):
        raise TypeError(
            "process takes a connection string, sb://HOST?credential=SOURCE, a Namespace, or with"
            f" asyncio a client of azure.servicebus.aio; got {type(given).__name__}"
        )
    return Namespace.of(given)


def receivers_of(
    source: Any, entity_name: str, subscription: str | None, **options: Any
) -> tuple[str, Callable[..., Any]]:
    """Return the name of a queue or subscription, and the function that makes its receivers.

    `source` has the methods of `ServiceBusClient`; `options` are for these methods.
    """
    _require_name("queue or topic", entity_name)
    if subscription is None:
        return entity_name, partial(source.get_queue_receiver, entity_name, **options)
    _require_name("subscription", subscription)
    get_receiver = partial(source.get_subscription_receiver, entity_name, subscription, **options)
    return subscription_path(entity_name, subscription), get_receiver


def _require_name(what: str, name: Any) -> None:
    if not isinstance(name, str) or not name.strip("/"):
        raise ValueError(f"the name of a {what} must be a text that is not empty; got {name!r}")


class OwnedClient:
    """The SDK's client of one namespace, made on the event loop with the first receiver."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._client: ServiceBusClient | None = None

    def get_queue_receiver(self, *names: str, **sdk_options: Any) -> Any:
        return self._sdk().get_queue_receiver(*names, **sdk_options)

    def get_subscription_receiver(self, *names: str, **sdk_options: Any) -> Any:
        return self._sdk().get_subscription_receiver(*names, **sdk_options)

    def _sdk(self) -> ServiceBusClient:
        if self._client is None:
            self._client = self._namespace.client()
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await close_sdk_client(self._client)
