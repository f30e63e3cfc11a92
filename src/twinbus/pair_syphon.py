"""The syphon inside a pair: moves its backlog queues, and twins that hold messages, home."""

from __future__ import annotations

from collections.abc import Sequence

from twinbus.client.connection import Environment
from twinbus.ledger.requests import BilledRequests
from twinbus.namespace.access import endpoint_of
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.lifecycle.twin_listing import TwinListing
from twinbus.pairing.sending.client import PairedClient
from twinbus.servicebus.twins import PATTERN_CHARACTERS
from twinbus.status.document import TwinContents
from twinbus.syphon.core.pacing import Rate
from twinbus.syphon.host import SyphonGroup, SyphonHost
from twinbus.syphon.twin_search import TwinSearch


class PairSyphon:
    """Starts a host for the backlog queues that the pair finds, and one for each twin."""

    def __init__(
        self,
        primary: Namespace,
        secondary: Namespace,
        options: SendAvailabilityOptions,
        environment: Environment,
    ) -> None:
        self.group = SyphonGroup(Rate(options.syphon_rate), environment)
        self._primary = primary
        self._secondary = secondary
        self._options = options
        self._client: PairedClient | None = None
        self._search: TwinSearch | None = None
        self._listing: TwinListing | None = None

    @property
    def twins(self) -> dict[str, TwinContents]:
        """What twins held at the last listing; empty: nothing is known."""
        return {} if self._search is None else self._search.contents

    def attach(self, client: PairedClient) -> None:
        """Give way to the sends of this client, and tell it of what was delivered."""
        self._client = client
        client.state.on_busy = self.group.yield_to_callers

    async def pump(self, queues: list[str]) -> None:
        """Start a host for backlog queues that were found."""
        await self.group.add(self._host(queues))

    def look_for_twins(self) -> None:
        """List twins from now on, if the options have some, and pump queues that hold messages."""
        listed = self._options.twins
        if listed is None:
            return
        assert self._client is not None
        state, secondary = self._client.state, endpoint_of(self._secondary)
        ledger = state.recorder.ledger
        self._search = search = TwinSearch(
            secondary,
            self._primary.label,
            self.group,
            lambda path: self._host([], [path]),
            only=self._options.syphon_only,
            requests=BilledRequests(
                secondary.label, cause="syphon", side="secondary", ledger=ledger
            ),
        )
        named = [one for one in listed if PATTERN_CHARACTERS.isdisjoint(one)]
        self._listing = TwinListing(
            state,
            lambda: search.search(named),
            lambda path, is_healthy: search.entity_changed(path, is_healthy=is_healthy),
        )
        self._listing.start()

    async def stop_looking(self) -> None:
        """List twins no more; the owner closes the hosts of the group."""
        if self._listing is not None:
            await self._listing.close()

    def _host(self, queues: list[str], twins: Sequence[str] = ()) -> SyphonHost:
        assert self._client is not None
        return SyphonHost(
            self._primary,
            self._secondary,
            queues,
            self._options,
            self._client.state.recorder.ledger,
            twins=twins,
            on_delivered=self._client.forwarded,
            rate=self.group.rate,
            outages=self.group.outages,
            environment=self.group.environment,
        )
