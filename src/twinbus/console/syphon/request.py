"""The checked options of `twinbus syphon run` and `drain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from twinbus.client.peeking import destination_keys
from twinbus.console.namespaces import creating
from twinbus.console.output import WrongUse
from twinbus.cost.arithmetic import QuantityError, parse_rate
from twinbus.errors import SyphonError
from twinbus.ledger import LedgerWriter, NullLedger
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.backlog import lease_path
from twinbus.status.document import SyphonStatus
from twinbus.syphon.bookkeeping import OutageLog
from twinbus.syphon.core.pacing import (
    HIGHEST_PER_S,
    LOWEST_PER_S,
    STANDARD_PER_S,
    Rate,
    time_to_empty_s,
)
from twinbus.syphon.host import SyphonGroup, SyphonHost

STANDARD: Final = "standard"
"""The rate that leaves an application half of a Standard namespace."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyphonRequest:
    """The two sides, and how to move the backlog."""

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
    ) -> SyphonHost:
        """Return a syphon of these queues, not started."""
        return SyphonHost(
            self.primary,
            self.secondary,
            queues,
            self.options,
            ledger,
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
            waiting=waiting,
            rate_per_s=round(per_s, 1),
            empty_in_s=None if waiting is None else time_to_empty_s(waiting, lasting_per_s),
        )

    def make_rate(self) -> Rate:
        """Return the rate that all pumps share."""
        return Rate(self.rate_per_s)


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
