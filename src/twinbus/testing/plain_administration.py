"""The SDK's administration client for a broker without TLS.

Data-plane clients need nothing: `UseDevelopmentEmulator=true` turns TLS off. The administration
client has `https` built in, so its transport is told to speak plain HTTP.

    administration("Endpoint=sb://localhost:5672;...").create_queue("orders")
"""

from __future__ import annotations

from typing import Any

from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus.aio.management import (
    ServiceBusAdministrationClient as AsyncAdministrationClient,
)
from azure.servicebus.management import ServiceBusAdministrationClient


def administration(connection_string: str, **sdk_options: Any) -> ServiceBusAdministrationClient:
    """Return an administration client over plain HTTP; without retries unless `retry_total`."""
    options = {"retry_total": 0, **sdk_options, "transport": _PlainRequests()}
    return ServiceBusAdministrationClient.from_connection_string(connection_string, **options)


def async_administration(connection_string: str, **sdk_options: Any) -> AsyncAdministrationClient:
    """Return the same for asyncio."""
    options = {"retry_total": 0, **sdk_options, "transport": _PlainAioHttp()}
    return AsyncAdministrationClient.from_connection_string(connection_string, **options)


class _PlainRequests(RequestsTransport):  # type: ignore[misc]  # untyped in azure-core
    def send(self, request: Any, **config: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return super().send(request, **config)


class _PlainAioHttp(AioHttpTransport):  # type: ignore[misc]  # untyped in azure-core
    async def send(self, request: Any, **config: Any) -> Any:
        request.url = request.url.replace("https://", "http://", 1)
        return await super().send(request, **config)
