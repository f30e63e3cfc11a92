"""The paired and guarded receivers of a pair, and the two connections that they share.

The twin of an entity is read only if it has the mark of `twinbus twins create | adopt` for this
primary: a namesake without it may be the live queue of another application. Reading the mark needs
the right Manage on the twin. Without that right the twin is read if the option `twins` has the very
name of the entity: the application that names it vouches for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from twinbus.client.administration import NotAnswered
from twinbus.client.connection import MACHINE, Environment
from twinbus.client.links import UpstreamConnection
from twinbus.client.receiving import NO_SESSION
from twinbus.client.request_node import ConnectionLost
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.sides import Side
from twinbus.pairing.observing.recording import Recorder
from twinbus.pairing.receiving.mark_watch import NotReadable, ReadMark
from twinbus.pairing.receiving.receiver import PairedReceiver
from twinbus.pairing.receiving.settings import receiver_settings
from twinbus.pairing.receiving.side import LinkSettings, ReceivingSide, SideOwner
from twinbus.servicebus.twins import is_listed, is_named, twin_mark
from twinbus.status.receiving import OTHERS, ReceiverStatus, only_counts, summed_receivers

log = logging.getLogger("twinbus.receiving")

ANSWER_LEAST_S: Final = 5.0
"""Time for an answer on the connections of receivers, if the attempt timeout is not longer: a
receiver has no caller who waits for a failover."""

MARKED_S: Final = 60.0
"""How long a mark that was read counts for single requests: reading it is a request."""


PATHS_MAX: Final = 1_000
"""Queues and subscriptions with a row of their own in the status; others are summed in one."""


class CountedReceiver(Protocol):
    """A receiver that a status shows."""

    def status(self) -> ReceiverStatus: ...


class PairedReceivers:
    """Makes the receivers of one pair that read on our own links."""

    def __init__(
        self,
        primary: Namespace,
        secondary: Namespace,
        options: SendAvailabilityOptions,
        recorder: Recorder,
        environment: Environment = MACHINE,
    ) -> None:
        """Belongs to the running event loop."""
        self._namespaces = {Side.PRIMARY: primary, Side.SECONDARY: secondary}
        self._options = options
        self._recorder = recorder
        self._environment = environment
        self._connections: dict[Side, UpstreamConnection] = {}
        self._marked_at: dict[str, float] = {}
        """When the mark of each twin was last seen, for all its receivers."""
        self._reading: dict[str, asyncio.Lock] = {}
        self._receivers: set[PairedReceiver] = set()
        self._others: set[CountedReceiver] = set()
        """Receivers of a gateway's clients: they are in the status, and close by themselves."""
        self._sides: WeakKeyDictionary[ReceivingSide, None] = WeakKeyDictionary()
        """All that were made, in their order: a simulation must tell the same story twice."""
        self._closed: dict[str, ReceiverStatus] = {}
        """The counts of receivers that were closed, by path."""

    def has_twin(self, entity: str) -> bool:
        """Whether the options say that an entity has a twin."""
        return is_listed(self._options.twins, entity)

    def make(self, entity: str, path: str, sdk_options: dict[str, Any]) -> PairedReceiver:
        """Make a receiver of a queue, or of the subscription `path` of the topic `entity`."""
        primary = self._namespaces[Side.PRIMARY]
        if primary.entity_path is not None and entity != primary.entity_path:
            raise ValueError(
                f"the connection string of the primary is for {primary.entity_path!r} (EntityPath),"
                f" so it has no receiver from {entity!r}"
            )
        settings = receiver_settings(path, **sdk_options)
        has_twin = self.has_twin(entity)
        if settings.session is not NO_SESSION and not self._options.twins_with_sessions:
            has_twin = False  # Senders divert its messages to the backlog, not to the twin.
        receiver = PairedReceiver(
            settings,
            partial(self.sides, entity, settings.for_link(), has_twin=has_twin),
            namespace=primary.fully_qualified_namespace,
            label=primary.label,
            has_twin=has_twin,
            on_close=self._was_closed,
        )
        self._receivers.add(receiver)
        return receiver

    def sides(
        self, entity: str, settings: LinkSettings, owner: SideOwner, *, has_twin: bool
    ) -> list[ReceivingSide]:
        """Make what reads an entity, the primary first; the owner starts and closes them."""
        make = partial(self._side, settings, owner)
        primary = make(Side.PRIMARY, None)
        if not has_twin:
            return [primary]
        return [primary, make(Side.SECONDARY, partial(self._mark_seen_at, entity))]

    def status(self) -> dict[str, ReceiverStatus]:
        """The receivers of each queue and subscription together, by path. From any thread."""
        # Copies: the loop changes both meanwhile.
        counted = (*tuple(self._receivers), *tuple(self._others))
        parts = [*dict(self._closed).values(), *(one.status() for one in counted)]
        by_path: dict[str, list[ReceiverStatus]] = {}
        for one in parts:
            is_shown = one.path in by_path or len(by_path) < PATHS_MAX
            by_path.setdefault(one.path if is_shown else OTHERS, []).append(one)
        return {path: summed_receivers(path, found) for path, found in by_path.items()}

    def _was_closed(self, receiver: PairedReceiver) -> None:
        if receiver not in self._receivers:
            return  # One that could not be opened is closed twice.
        self._receivers.discard(receiver)
        self._keep_counts(receiver)

    def opened(self, receiver: CountedReceiver) -> None:
        """Show a receiver of a gateway's client in the status, until `closed`."""
        self._others.add(receiver)

    def closed(self, receiver: CountedReceiver) -> None:
        if receiver in self._others:
            self._others.discard(receiver)
            self._keep_counts(receiver)

    def _keep_counts(self, receiver: CountedReceiver) -> None:
        counts = only_counts(receiver.status())
        is_kept = counts.path in self._closed or len(self._closed) < PATHS_MAX
        path = counts.path if is_kept else OTHERS
        before = [self._closed[path]] if path in self._closed else []
        self._closed[path] = summed_receivers(path, [*before, counts])

    def retry(self, side: Side) -> None:
        """Open the links of one side that are down: its namespace answers again."""
        for one in tuple(self._sides):
            if one.side is side:
                one.retry()

    async def close(self) -> None:
        """Close every receiver, then the connections."""
        await asyncio.gather(*(receiver.close() for receiver in tuple(self._receivers)))
        await asyncio.gather(*(one.close() for one in self._connections.values()))

    async def close_side(self, side: Side) -> None:
        """Read one side no more."""
        await asyncio.gather(*(one.close_side(side) for one in tuple(self._receivers)))
        if side in self._connections:
            await self._connections[side].close()

    def _side(
        self,
        settings: LinkSettings,
        owner: SideOwner,
        side: Side,
        read_mark: ReadMark | None,
    ) -> ReceivingSide:
        made = ReceivingSide(
            side,
            self.connection(side),
            settings,
            owner,
            read_mark=read_mark,
            environment=self._environment,
        )
        self._sides[made] = None
        return made

    def connection(self, side: Side) -> UpstreamConnection:
        """Return the connection that all receivers of a side share."""
        connection = self._connections.get(side)
        if connection is None:
            connection = self._connections[side] = UpstreamConnection(
                self._namespaces[side],
                max(ANSWER_LEAST_S, self._options.attempt_timeout_s),
                self._environment.connect,
                self._recorder.requests(side.value),
            )
        return connection

    async def require_mark(self, entity: str) -> None:
        """Raise NotReadable if the secondary's namesake of an entity must not be read."""
        await self._mark_seen_at(entity, asyncio.get_running_loop().time() - MARKED_S)

    async def _mark_seen_at(self, entity: str, after: float) -> float:
        """Return when the mark of an entity's twin was seen, later than `after`.

        One reading is enough for all receivers of the entity.
        """
        key = entity.lower()
        async with self._reading.setdefault(key, asyncio.Lock()):
            began = asyncio.get_running_loop().time()
            if self._marked_at.get(key, -math.inf) <= after:
                await self._look_at_mark(entity)
                self._marked_at[key] = began
            return self._marked_at[key]

    async def _look_at_mark(self, entity: str) -> None:
        label = self._namespaces[Side.PRIMARY].label
        endpoint = endpoint_of(self._namespaces[Side.SECONDARY])
        billed = BilledRequests(endpoint.label, side="secondary", ledger=self._recorder.ledger)
        try:
            marked = await self._environment.is_marked(endpoint, entity, label, billed)
        except NotAnswered as error:
            raise ConnectionLost(str(error)) from error
        if marked or (marked is None and is_named(self._options.twins, entity)):
            return
        if marked is None:
            raise NotReadable(
                f"{entity!r} of the secondary is not read: whether it is a twin needs the right"
                " Manage there, or its very name in the option twins"
            )
        raise NotReadable(
            f"{entity!r} of the secondary is not read: it is missing, or its UserMetadata is not"
            f" {twin_mark(label)!r}; make it with `twinbus twins create` or `twinbus twins adopt`"
        )
