"""Receivers and requests of a gateway's clients at entities that have a twin in the secondary.

Which entities: the option `twins` lists them. Receivers of a session, those that browse and those
with a filter are relayed to the primary alone, and so is everything at other entities.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING

from twinbus.amqp.performatives import Source
from twinbus.broker.links.receiving import BROWSING
from twinbus.gateway.client_copies import ClientCopies
from twinbus.gateway.node_requests import Holding
from twinbus.gateway.relay_records import ReceivedNames
from twinbus.gateway.twin_receiver import TwinReceiver
from twinbus.gateway.twin_requests import SecondaryLocks, TwinRequests
from twinbus.servicebus.names import (
    MANAGEMENT_SUFFIX,
    entity_of,
    is_entity_name,
    parse_backlog_path,
)

if TYPE_CHECKING:
    from twinbus.amqp.link import SenderLink
    from twinbus.broker.links.context import LinkClient
    from twinbus.pairing.receiving.receivers import PairedReceivers


class GatewayTwins:
    """What all clients of a gateway share of the entities with a twin."""

    def __init__(
        self,
        receivers: PairedReceivers,
        label: str,
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        """`label` is the primary's."""
        self.open: set[TwinReceiver] = set()
        self._receivers = receivers
        self._label = label
        self._spawn = spawn
        self._locks = SecondaryLocks()
        self._copies: dict[LinkClient, ClientCopies] = {}

    def receiver(
        self,
        client: LinkClient,
        link: SenderLink,
        address: str,
        granted_until_ms: int,
        *,
        name: str | None = None,
        links: Holding,
    ) -> TwinReceiver | None:
        """Receive from both sides of an entity; None: it is received from the primary alone.

        `name` is what the ledger calls the client; `links` counts its links until both sides are
        closed.
        """
        source = link.source or Source()
        entity = self._entity(address)
        if entity is None or source.filter or source.distribution_mode == BROWSING:
            return None
        links.take(1)
        receiver = TwinReceiver(
            client,
            link,
            address,
            granted_until_ms,
            name=name,
            make_sides=partial(self._receivers.sides, entity, has_twin=True),
            label=self._label,
            locks=self._locks,
            copies=self._copies_of(client),
            spawn=self._spawn,
            on_close=partial(self._closed, links),
        )
        self.open.add(receiver)
        self._receivers.opened(receiver)
        receiver.begin()
        return receiver

    def _closed(self, links: Holding, receiver: TwinReceiver) -> None:
        links.give_back(1)
        self.open.discard(receiver)
        self._receivers.closed(receiver)

    def requests(
        self,
        client: LinkClient,
        address: str,
        name: str | None = None,
        received: ReceivedNames | None = None,
    ) -> TwinRequests | None:
        """Return what answers requests to a `$management` node; None: the primary alone does.

        `name` is what the ledger calls the client, `received` its messages.
        """
        path = address[: -len(MANAGEMENT_SUFFIX)]
        entity = self._entity(path)
        if entity is None:
            return None
        copies = self._copies_of(client)
        return TwinRequests(self._receivers, self._locks, entity, path, name, received, copies)

    def _copies_of(self, client: LinkClient) -> ClientCopies:
        return self._copies.setdefault(client, ClientCopies())

    def disconnected(self, client: LinkClient) -> None:
        """The connection of a client has ended."""
        self._copies.pop(client, None)

    def _entity(self, path: str) -> str | None:
        """The entity with a twin that a path belongs to; None: it has no twin."""
        entity = entity_of(path)
        if not is_entity_name(entity) or parse_backlog_path(entity) is not None:
            return None
        return entity if self._receivers.has_twin(entity) else None

    async def close(self) -> None:
        """Close all receivers: their links are drained, and what is on its way is released."""
        await asyncio.gather(*(receiver.closing() for receiver in tuple(self.open)))
