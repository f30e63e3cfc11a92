"""The checked options of `twinbus syphon run` and `drain`, and the search for backlog queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.client.administration import (
    QUEUES,
    ListingRefused,
    NotAnswered,
    QueueCounts,
    backlog_counts_in,
    counts_of,
    list_entries,
)
from twinbus.client.peeking import destination_keys
from twinbus.client.twins import twins_in
from twinbus.console.namespaces import creating
from twinbus.console.output import WrongUse
from twinbus.cost.arithmetic import QuantityError, parse_rate
from twinbus.errors import SyphonError
from twinbus.ledger import LedgerWriter, NullLedger
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.backlog import lease_path
from twinbus.pairing.core.secondary import ListingTimes
from twinbus.status.document import SyphonStatus, TwinContents
from twinbus.syphon.bookkeeping import OutageLog
from twinbus.syphon.core.pacing import (
    HIGHEST_PER_S,
    LOWEST_PER_S,
    STANDARD_PER_S,
    Rate,
    time_to_empty_s,
)
from twinbus.syphon.host import SyphonGroup, SyphonHost

if TYPE_CHECKING:
    from twinbus.namespace.access import Endpoint
    from twinbus.syphon.twin_search import TwinSearch

STANDARD: Final = "standard"
"""The rate that leaves an application half of a Standard namespace."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyphonRequest:
    primary: Namespace
    secondary: Namespace
    options: SendAvailabilityOptions
    rate_per_s: float | None = None
    only: tuple[str, ...] = ()
    lease: bool = False
    ledger: str | None = None

    def __post_init__(self) -> None:
        if self.primary.place == self.secondary.place:
            raise WrongUse(f"both sides are {self.primary.endpoint}: name two namespaces")
        if self.only:
            try:
                destination_keys(self.only)
            except SyphonError as error:
                raise WrongUse(f"--only: {error}") from None

    @property
    def label(self) -> str:
        return self.primary.label

    @property
    def pair(self) -> str:
        """The name of the pair in metrics, as an application with this pair has it."""
        return f"{self.primary.label}+{self.secondary.label}"

    async def have_lease_queue(self) -> None:
        """Create the lease queue if a lease is wanted and the queue is missing."""
        if self.lease:
            path = lease_path(self.label)
            doing = f"creating the lease queue {path}"
            async with creating(
                self.primary, self.secondary, doing, ", or leave --lease out"
            ) as calls:
                await calls.ensure_lease_queue(path)

    def host(
        self,
        queues: Sequence[str],
        ledger: LedgerWriter | NullLedger,
        rate: Rate,
        outages: OutageLog | None = None,
        twins: Sequence[str] = (),
    ) -> SyphonHost:
        return SyphonHost(
            self.primary,
            self.secondary,
            queues,
            self.options,
            ledger,
            twins=twins,
            lease=self.lease,
            rate=rate,
            only=self.only or None,
            outages=outages,
        )

    def status(
        self,
        host: SyphonHost | SyphonGroup,
        waiting: int | None,
        per_s: float,
        without_pump: Sequence[str] = (),
        twins: Mapping[str, TwinContents] | None = None,
    ) -> SyphonStatus:
        """Return the status of this syphon for its control socket, with a forecast."""
        # The rate is a mean of the last seconds, and a pause ends it at once.
        lasting_per_s = 0.0 if host.is_paused else per_s
        return SyphonStatus(
            primary=self.primary.endpoint,
            secondary=self.secondary.endpoint,
            paused=host.is_paused,
            rate_limit_per_s=host.rate.governor.most_per_s,
            only=sorted(self.only),
            queues=host.status(),
            without_pump=list(without_pump),
            twins=dict(twins or {}),
            waiting=waiting,
            rate_per_s=round(per_s, 1),
            empty_in_s=None if waiting is None else time_to_empty_s(waiting, lasting_per_s),
        )


def rate_of(text: str | None) -> float | None:
    """Return the messages per second of --rate; None: no limit."""
    if text is None or text.strip().lower() == STANDARD:
        return None if text is None else STANDARD_PER_S
    try:
        per_s = float(parse_rate(text, "--rate", most=int(HIGHEST_PER_S)))
    except QuantityError as error:
        raise WrongUse(
            f"{error}; or `{STANDARD}`: {STANDARD_PER_S:g}/s, half of what a Standard namespace"
            " takes"
        ) from None
    if per_s < LOWEST_PER_S:
        raise WrongUse(
            f"--rate must be from {LOWEST_PER_S:g} to {HIGHEST_PER_S:,.0f} messages a second; got"
            f" {text!r:.60}"
        )
    return per_s


class QueueSearch:
    """Finds the backlog queues of a label as long as a program runs, and starts their pumps.

    One listing tells which queues exist, which are twins, and what they hold. It is made at the
    times of `ListingTimes` and whenever the messages are counted, so that a count never leaves out
    a queue.
    """

    def __init__(
        self,
        secondary: Endpoint,
        label: str,
        group: SyphonGroup,
        start: Callable[[list[str]], Awaitable[None]],
        named: Sequence[str] | None = None,
        twins: TwinSearch | None = None,
    ) -> None:
        """`start` is called with queues that have no pump yet, `twins` with each listing.

        `named` queues are started without a listing, which needs the Manage right, and no others.
        """
        self.without_pump: list[str] = []
        """Queues of the last listing that this syphon does not pump."""
        self._secondary = secondary
        self._label = label
        self._group = group
        self._start = start
        self._named = named
        self._twins = twins
        self._times = ListingTimes()
        self._is_closed = False
        self._starting = asyncio.Lock()
        """Two searches at the same time must not start two pumps of one queue."""

    @property
    def twins(self) -> Mapping[str, TwinContents]:
        """What twins held at the last listing."""
        return {} if self._twins is None else self._twins.contents

    def close(self) -> None:
        """Start no more pumps."""
        self._is_closed = True
        if self._twins is not None:
            self._twins.close()

    def is_due(self) -> bool:
        queues, now = self._group.status(), time.monotonic()
        if self._named is not None and queues:
            return False
        is_down = any(state.held or "primary" in state.problems for state in queues.values())
        moved = sum(state.forwarded + state.dead_lettered for state in queues.values())
        self._times.observe(is_down=is_down, moved=moved, now=now)
        return now >= self._times.due_at(now, has_queues=bool(queues))

    async def search(self) -> None:
        """Start the pumps of queues that have none; SyphonError if the listing is not answered."""
        if self._named is not None:
            self._times.searched(time.monotonic())
            await self._start_new(self._named)
        else:
            await self.counts()

    async def counts(self) -> Mapping[str, QueueCounts]:
        """Count the messages of all backlog queues; start the pumps of those that have none.

        SyphonError if the counts are refused or not answered.
        """
        self._times.searched(time.monotonic())
        try:
            entries = await list_entries(self._secondary, QUEUES)
        except ListingRefused:
            if self._named is None:
                raise
            return await self._counts_by_name(self._named)
        found = backlog_counts_in(entries, self._label)
        if self._named is None:
            await self._start_new(list(found))
            if self._twins is not None:
                await self._twins.listed(twins_in(entries, self._label))
        pumped = {queue.lower() for queue in self._group.status()}
        self.without_pump = [queue for queue in found if queue.lower() not in pumped]
        counts = {queue: one for queue, one in found.items() if one is not None}
        return counts if len(counts) == len(found) else await self._counts_by_name(list(found))

    async def _start_new(self, queues: Sequence[str]) -> None:
        async with self._starting:
            pumped = {queue.lower() for queue in self._group.status()}
            new = [queue for queue in queues if queue.lower() not in pumped]
            if new and not self._is_closed:
                await self._start(new)

    async def _counts_by_name(self, queues: Sequence[str]) -> Mapping[str, QueueCounts]:
        """Count queue by queue: a credential may have rights on single queues alone."""
        try:
            found = await asyncio.gather(*(counts_of(self._secondary, queue) for queue in queues))
        except NotAnswered as error:
            raise SyphonError(str(error)) from error
        return dict(zip(queues, found, strict=True))
