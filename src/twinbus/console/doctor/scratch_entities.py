"""Scratch entities of the doctor, deleted again whatever happens."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from azure.core.exceptions import AzureError, ResourceNotFoundError

from twinbus.console.namespaces import administration
from twinbus.namespace.administration_client import administration_client
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.lifecycle.administration import first_line

IDLE: Final = timedelta(minutes=5)
"""The minimum of Service Bus: it deletes what a killed doctor left behind."""

DELETE_S: Final = 10.0
DOING: Final = "creating scratch entities"


class Scratch:
    """Creates scratch entities; an async context manager that deletes them at the end."""

    def __init__(self) -> None:
        self.label = f"twinbus-doctor-{secrets.token_hex(4)}"
        """The beginning of their names."""
        self.left_behind: list[str] = []
        """What could not be deleted, and why."""
        self._made: list[tuple[Namespace, str, Callable[[Any], Awaitable[None]]]] = []

    async def __aenter__(self) -> Scratch:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for namespace, path, delete in reversed(self._made):
            try:
                async with asyncio.timeout(DELETE_S), administration_client(namespace) as client:
                    await delete(client)
            except ResourceNotFoundError:
                pass
            except (AzureError, OSError) as error:
                why = first_line(error) or f"no answer within {DELETE_S:g} s"
                self.left_behind.append(f"{path} in {namespace.endpoint} ({why})")
        self._made.clear()

    async def queue(self, namespace: Namespace, path: str, **settings: Any) -> str:
        """Create a queue; return its path."""
        self._made.append((namespace, path, lambda client: client.delete_queue(path)))
        async with administration(namespace, DOING) as client:
            await client.create_queue(path, auto_delete_on_idle=IDLE, **settings)
        return path

    async def topic(
        self, namespace: Namespace, path: str, subscription: str, **settings: Any
    ) -> str:
        """Create a topic and a subscription with these settings; return the topic's path."""
        self._made.append((namespace, path, lambda client: client.delete_topic(path)))
        async with administration(namespace, DOING) as client:
            await client.create_topic(path, auto_delete_on_idle=IDLE)
            await client.create_subscription(path, subscription, **settings)
        return path
