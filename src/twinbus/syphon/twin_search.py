"""Finds the twins of a primary in the secondary, and starts and ends their pumps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from twinbus.client.administration import QUEUES, ListingRefused, list_entries
from twinbus.client.peeking import destination_keys
from twinbus.client.twins import found_subscriptions, twins_in
from twinbus.errors import SyphonError
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import Endpoint
from twinbus.servicebus.twins import FoundTwin
from twinbus.status.document import TwinContents
from twinbus.syphon.core.twin_book import TwinBook
from twinbus.syphon.host import SyphonGroup, SyphonHost

log = logging.getLogger("twinbus.syphon")

OUTAGE: Final = "the entity takes no messages now"
"""Why a pump pauses. It would send what consumers may have already to a primary that hangs, which
could store it and not answer: then both sides have a copy that nobody knows of."""

TOPICS_EVERY_S: Final = 3_600.0
"""Time between two listings of topics while none is known to be a twin."""


class TwinSearch:
    """Keeps a pump for each twin of a queue that holds messages, one host for each."""

    def __init__(
        self,
        secondary: Endpoint,
        label: str,
        group: SyphonGroup,
        make_host: Callable[[str], SyphonHost],
        *,
        only: Collection[str] | None = None,
        requests: BilledRequests | None = None,
    ) -> None:
        """`label` is that of the primary; `make_host` returns a host for one twin, not started."""
        self._secondary = secondary
        self._label = label
        self._group = group
        self._make_host = make_host
        self._requests = requests
        self._book = TwinBook(None if only is None else destination_keys(only))
        self._hosts: dict[str, SyphonHost] = {}
        self._subscriptions: list[FoundTwin] = []
        self._topics_at = 0.0
        self._changing = asyncio.Lock()
        """Two searches at the same time must not start two pumps of one twin."""
        self._is_closed = False
        self._ailing: set[str] = set()
        """Entities that are not healthy, in lower case."""

    def entity_changed(self, path: str, *, is_healthy: bool) -> None:
        """Leave the twin of an entity to its consumers until the entity is healthy."""
        if is_healthy:
            self._ailing.discard(path.lower())
        else:
            self._ailing.add(path.lower())
        for twin, host in self._hosts.items():
            if twin.lower() == path.lower():
                (host.resume if is_healthy else host.pause)(OUTAGE)

    def close(self) -> None:
        """Start no more pumps; the owner of the group closes those that run."""
        self._is_closed = True

    @property
    def contents(self) -> dict[str, TwinContents]:
        """What the twins held at the last listing."""
        return self._book.contents(self._group.environment.monotonic())

    async def search(self, named: Sequence[str] = ()) -> None:
        """List the twins, and start and end pumps; SyphonError if there is no answer.

        `named` are pumped if the credential may not list them.
        """
        try:
            entries = await list_entries(self._secondary, QUEUES, self._requests)
        except ListingRefused:
            await self._change([FoundTwin(path, active=1, waiting=None) for path in named])
        else:
            await self.listed(twins_in(entries, self._label))

    async def listed(self, queues: Sequence[FoundTwin]) -> None:
        """Take the twins of a listing of queues; list the subscriptions of topics if it is time."""
        now = self._group.environment.monotonic()
        if self._subscriptions or now >= self._topics_at:
            try:
                found = await found_subscriptions(self._secondary, self._label, self._requests)
            except SyphonError as error:
                log.info("%s: subscriptions of twins are not known: %s", self._label, error)
                self._subscriptions = [replace(one, waiting=None) for one in self._subscriptions]
            else:
                self._subscriptions, self._topics_at = found, now + TOPICS_EVERY_S
        await self._change([*queues, *self._subscriptions])

    async def _change(self, found: Sequence[FoundTwin]) -> None:
        async with self._changing:
            if self._is_closed:
                return
            pumped = {path: bool(host.in_flight) for path, host in self._hosts.items()}
            now = self._group.environment.monotonic()
            changes = self._book.listed(found, pumped, now)
            for path in changes.stop:
                log.info("%s: the pump of the twin ends", path)
                await self._group.remove(self._hosts.pop(path))
            for path in changes.start:
                log.info("%s: the twin holds messages, its pump starts", path)
                host = self._hosts[path] = self._make_host(path)
                if path.lower() in self._ailing:
                    host.pause(OUTAGE)
                await self._group.add(host)
