"""The answer of the tables as plain data: no Spark in it, and `as_json` for `--output json`.

None means unknown, never 0; `unknown` says in sentences what is not known and why, `assumed` what
was counted without a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, NamedTuple

__all__ = ["Bill", "Charge", "Depth", "Duplicate", "Report", "Sends", "Sighting", "StateChange"]


class Sighting(NamedTuple):
    """One message that a peek saw: in a backlog queue, or in the dead-letter queue of one."""

    destination: str
    """Where it belongs: what its `x-ms-path` says."""
    message_id: str
    place: str
    """"waiting" or "dead_lettered"."""


class Charge(NamedTuple):
    """Operations of one cause and kind, over all days and entities."""

    cause: str
    operation: str
    assumed: bool
    operations: int
    units: int


class Duplicate(NamedTuple):
    entity: str
    message_id: str
    times: int
    window: str


class Sends(NamedTuple):
    """Acknowledged sends in the `bucket_s` seconds from `at_s` (unix time) on."""

    at_s: int
    to_primary: int
    to_backlog: int


class Depth(NamedTuple):
    """Messages in the backlog at the end of the `bucket_s` seconds from `at_s` on."""

    at_s: int
    depth: int


class StateChange(NamedTuple):
    at_ms: int
    entity: str | None
    state: str | None
    process: str


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What the operations cost, by one price book."""

    price_book: str
    currency: str
    units: int
    """Units that are charged, by the counting rule in force."""
    settlement_units: int
    """Those of complete, defer and dead-letter: in `units` only if `settlement_counted`."""
    settlement_counted: bool
    amount: Decimal | None
    """Were these all operations of their months: most often nothing, for the first are free."""
    amount_past_free: Decimal | None
    """The same with the month's free operations used up by other work."""
    bytes_in: int
    bytes_out: int
    egress_amount: Decimal | None
    """None: the book has no price for traffic out of the region."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a ledger says. A message is counted once, however often it was tried."""

    accepted: int
    """Messages whose sender was told that they are safe: by the primary or by the backlog."""
    delivered: int
    received: int | None
    """Accepted messages that a consumer received. None: no consumer kept a ledger."""
    not_received: int | None
    not_received_ids: tuple[str, ...]
    received_unaccepted: int
    """Received though their sender had an error or no answer."""
    waiting: int | None
    dead_lettered: int | None
    expired: int | None
    lost: int | None
    """None while `undecided` is not 0: it would be a guess."""
    lost_at_least: int
    lost_ids: tuple[str, ...]
    undecided: int
    duplicates: int
    """Messages that were received more than once at one entity."""
    duplicate_windows: Mapping[str, int]
    duplicate_ids: tuple[Duplicate, ...]
    diverted: int
    ambiguous: int
    """Messages of which a send or a divert ended without an answer."""
    raised: int
    """Messages that were tried and never accepted: their sender had an error."""
    charges: tuple[Charge, ...]
    operations_by_cause: Mapping[str, int]
    """Calls that were carried out, recorded ones only."""
    bill: Bill
    states: tuple[StateChange, ...]
    drain_began_ms: int | None
    """The first message that came out of the backlog."""
    drain_ended_ms: int | None
    """The last one that was settled there."""
    forwarded: int
    bucket_s: int
    sends: tuple[Sends, ...]
    backlog: tuple[Depth, ...]
    records: int
    set_aside: int
    """Lines of the ledger that are no record: torn by a crash, foreign, or of a later version."""
    unrecorded: int
    """Records that processes say they could not write."""
    unknown: tuple[str, ...]
    assumed: tuple[str, ...]

    @property
    def conserved(self) -> bool:
        """Every accepted message is accounted for, and none is lost: known, not guessed."""
        return self.lost == 0

    def as_json(self) -> dict[str, Any]:
        """The report for `json.dumps`; amounts are strings, as exact as they were."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def _plain(value: Any) -> Any:
    match value:
        case Decimal():
            return str(value)
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
        case tuple() if hasattr(value, "_asdict"):
            return {key: _plain(inner) for key, inner in value._asdict().items()}
        case tuple() | list():
            return [_plain(inner) for inner in value]
        case _:
            return value
