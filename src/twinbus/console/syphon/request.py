"""The checked options of `twinbus syphon run` and `drain`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from twinbus.console.namespaces import UnreachableError
from twinbus.console.terminal.output import WrongUse
from twinbus.cost.quantities import QuantityError
from twinbus.errors import MissingRightError, SyphonError
from twinbus.ledger import LedgerWriter, NullLedger, open_ledger
from twinbus.namespace.endpoint import endpoint_of
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.pairing.core.backlog import backlog_paths, lease_path
from twinbus.pairing.lifecycle.administration import BacklogAdministration, SecondaryUnreachable
from twinbus.pairing.sending.recording import Recorder
from twinbus.pipeline.drain.rate_text import parse_drain_rate
from twinbus.syphon.connection.peeking import list_backlog_queues
from twinbus.syphon.connection.selection import destination_keys
from twinbus.syphon.core.rate import Rate
from twinbus.syphon.host import SyphonHost

CALL_S: Final = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SyphonRequest:
    """The two sides, and how to move the backlog."""

    primary: Namespace
    secondary: Namespace
    options: SendAvailabilityOptions
    rate_per_s: float | None = None
    only: tuple[str, ...] = ()
    lease: bool | None = None
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
    def wants_lease(self) -> bool:
        return self.options.session_order == "strict" if self.lease is None else self.lease

    def backlog_paths(self, count: int) -> tuple[str, ...]:
        """Return the backlog queues of a pair with `count` of them."""
        return backlog_paths(self.label, count)

    def open_ledger(self) -> AbstractContextManager[LedgerWriter | NullLedger]:
        """Open the ledger of --ledger; without one, a ledger that records nothing."""
        return open_ledger(self.ledger)

    async def find_queues(self) -> list[str]:
        """Return the label's backlog queues in the secondary; SyphonError if it does not answer."""
        return await list_backlog_queues(endpoint_of(self.secondary), self.label)

    async def have_lease_queue(self) -> None:
        """Create the lease queue if a lease is wanted and the queue is missing."""
        if not self.wants_lease:
            return
        recorder = Recorder(NullLedger(), self.primary, self.secondary, is_on=False)
        path = lease_path(self.label)
        try:
            async with BacklogAdministration(self.secondary, recorder, timeout_s=CALL_S) as calls:
                await calls.ensure_lease_queue(path)
        except SecondaryUnreachable as error:
            raise UnreachableError(str(error)) from error
        except MissingRightError as error:
            raise MissingRightError(
                f"creating the lease queue {path} needs the Manage right in"
                f" {self.secondary.endpoint}; use a credential that has it, or leave --lease out"
            ) from error

    def host(
        self,
        queues: Sequence[str],
        ledger: LedgerWriter | NullLedger,
        rate: Rate | None,
    ) -> SyphonHost:
        """Return a syphon of these queues, not started."""
        return SyphonHost(
            self.primary,
            self.secondary,
            queues,
            self.options,
            ledger,
            lease=self.wants_lease,
            rate=rate,
            only=self.only or None,
        )

    def make_rate(self) -> Rate | None:
        """Return the rate limit that all pumps share, or None."""
        return None if self.rate_per_s is None else Rate(self.rate_per_s)


def rate_of(text: str | None) -> float | None:
    """Return the messages per second of --rate; None: no limit."""
    try:
        return None if text is None else parse_drain_rate(text, "--rate")
    except QuantityError as error:
        raise WrongUse(str(error)) from None
