"""What performatives carry: termini of a link, delivery states and errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from twinbus.amqp import fields
from twinbus.amqp.composites import Nested, define
from twinbus.amqp.types import Described


@dataclass(frozen=True, slots=True)
class Error:
    """Why the peer, or we, gave up on something."""

    condition: str = "amqp:internal-error"
    description: str | None = None
    info: dict[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A delivery that came in part."""

    section_number: int = 0
    section_offset: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """A delivery that was taken: complete."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A delivery that is invalid: dead-letter, or the answer to a failed request."""

    error: Error | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The receiver did not process the delivery."""


@dataclass(frozen=True, slots=True)
class Modified:
    """A delivery given back with a mark: abandon, or defer when undeliverable here."""

    delivery_failed: bool = False
    undeliverable_here: bool = False
    message_annotations: dict[Any, Any] | None = None


DeliveryState = Accepted | Rejected | Released | Modified | Received | Described


@dataclass(slots=True)
class Source:
    """Where the messages of a link come from. Read from bytes, `raw` keeps and repeats them."""

    address: str | None = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool = False
    dynamic_node_properties: dict[Any, Any] | None = None
    distribution_mode: str | None = None
    filter: dict[Any, Any] | None = None
    default_outcome: DeliveryState | None = None
    outcomes: list[str] | None = None
    capabilities: list[str] | None = None
    raw: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class Target:
    """Where the messages of a link go. Read from bytes, `raw` keeps and repeats them."""

    address: str | None = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool = False
    dynamic_node_properties: dict[Any, Any] | None = None
    capabilities: list[str] | None = None
    raw: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class Coordinator:
    """The target of a link that declares and ends transactions."""

    capabilities: list[str] | None = None


_STATES = (Accepted, Rejected, Released, Modified, Received)

ERROR = Nested("error", [Error])
STATE = Nested("delivery state", _STATES, open_ended=True)
SOURCE = Nested("source", [Source])
TARGET = Nested("target or coordinator", [Target, Coordinator])

define(
    Error,
    "error",
    0x1D,
    fields.SYMBOL,
    fields.STRING,
    fields.FIELDS,
    required="condition",
)
define(
    Received,
    "received",
    0x23,
    fields.UINT,
    fields.ULONG,
    required="section_number section_offset",
)
define(Accepted, "accepted", 0x24)
define(Rejected, "rejected", 0x25, ERROR)
define(Released, "released", 0x26)
define(Modified, "modified", 0x27, fields.BOOLEAN, fields.BOOLEAN, fields.FIELDS)
define(
    Source,
    "source",
    0x28,
    fields.STRING,
    fields.UINT,
    fields.SYMBOL,
    fields.UINT,
    fields.BOOLEAN,
    fields.FIELDS,
    fields.SYMBOL,
    fields.FIELDS,
    STATE,
    fields.SYMBOLS,
    fields.SYMBOLS,
)
define(
    Target,
    "target",
    0x29,
    fields.STRING,
    fields.UINT,
    fields.SYMBOL,
    fields.UINT,
    fields.BOOLEAN,
    fields.FIELDS,
    fields.SYMBOLS,
)
define(Coordinator, "coordinator", 0x30, fields.SYMBOLS)
