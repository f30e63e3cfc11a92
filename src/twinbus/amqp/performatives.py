"""The frames two peers exchange, and what they carry: termini, delivery states and errors.

Fields have the names and the order of the AMQP 1.0 specification. A null field reads as the default
written here; a field that the specification demands is never None after reading.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from twinbus.amqp import composites as kinds
from twinbus.amqp.composites import Nested, define
from twinbus.amqp.types import Described
from twinbus.servicebus import conditions

Map = dict[Any, Any]


@dataclass(frozen=True, slots=True)
class Error:
    condition: str = conditions.INTERNAL_ERROR
    description: str | None = None
    info: Map | None = None


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
    message_annotations: Map | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """The outcome of a `Declare`: the transaction has begun."""

    txn_id: bytes = b""


@dataclass(frozen=True, slots=True)
class TransactionalState:
    """A transfer or an outcome that takes effect when its transaction is committed."""

    txn_id: bytes = b""
    outcome: Accepted | Rejected | Released | Modified | Described | None = None


DeliveryState = (
    Accepted | Rejected | Released | Modified | Received | Declared | TransactionalState | Described
)


@dataclass(slots=True)
class Source:
    """Where the messages of a link come from. Read from bytes, `raw` keeps and repeats them."""

    address: str | None = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool = False
    dynamic_node_properties: Map | None = None
    distribution_mode: str | None = None
    filter: Map | None = None
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
    dynamic_node_properties: Map | None = None
    capabilities: list[str] | None = None
    raw: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class Coordinator:
    """The target of a link that declares and ends transactions."""

    capabilities: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Declare:
    """The body of a message to the coordinator: begin a transaction."""

    global_id: object = None


@dataclass(frozen=True, slots=True)
class Discharge:
    """The body of a message to the coordinator: commit a transaction, or undo it if `fail`."""

    txn_id: bytes = b""
    fail: bool = False


@dataclass(slots=True)
class Open:
    container_id: str = ""
    hostname: str | None = None
    max_frame_size: int | None = None
    channel_max: int | None = None
    idle_time_out: int | None = None
    outgoing_locales: list[str] | None = None
    incoming_locales: list[str] | None = None
    offered_capabilities: list[str] | None = None
    desired_capabilities: list[str] | None = None
    properties: Map | None = None


@dataclass(slots=True)
class Begin:
    remote_channel: int | None = None
    next_outgoing_id: int = 0
    incoming_window: int = 0
    outgoing_window: int = 0
    handle_max: int | None = None
    offered_capabilities: list[str] | None = None
    desired_capabilities: list[str] | None = None
    properties: Map | None = None


@dataclass(slots=True)
class Attach:
    """Attaches a link; `role` is True for the receiving end."""

    name: str = ""
    handle: int = 0
    role: bool = False
    snd_settle_mode: int | None = None
    rcv_settle_mode: int | None = None
    source: Source | None = None
    target: Target | Coordinator | None = None
    unsettled: Map | None = None
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: list[str] | None = None
    desired_capabilities: list[str] | None = None
    properties: Map | None = None


@dataclass(slots=True)
class Flow:
    """Tells windows of the session and, with a handle, the credit of a link."""

    next_incoming_id: int | None = None
    incoming_window: int = 0
    next_outgoing_id: int = 0
    outgoing_window: int = 0
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: Map | None = None


@dataclass(slots=True)
class Transfer:
    """Carries a message or a part of one.

    `settled` reads False where it is null: of a message in parts, any part that says True decides.
    """

    handle: int = 0
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool = False
    more: bool = False
    rcv_settle_mode: int | None = None
    state: DeliveryState | None = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


@dataclass(slots=True)
class Disposition:
    """Tells the state of the deliveries `first` to `last`; `last` is None for one alone."""

    role: bool = False
    first: int = 0
    last: int | None = None
    settled: bool = False
    state: DeliveryState | None = None
    batchable: bool = False


@dataclass(slots=True)
class Detach:
    """Detaches a link, and ends it when `closed`."""

    handle: int = 0
    closed: bool = False
    error: Error | None = None


@dataclass(slots=True)
class End:
    error: Error | None = None


@dataclass(slots=True)
class Close:
    error: Error | None = None


@dataclass(slots=True)
class SaslMechanisms:
    sasl_server_mechanisms: list[str] | None = None


@dataclass(slots=True)
class SaslInit:
    mechanism: str = ""
    initial_response: bytes | None = None
    hostname: str | None = None


@dataclass(slots=True)
class SaslOutcome:
    """Whether the client is let in: code 0."""

    code: int = 0
    additional_data: bytes | None = None


Performative = (
    Open
    | Begin
    | Attach
    | Flow
    | Transfer
    | Disposition
    | Detach
    | End
    | Close
    | SaslMechanisms
    | SaslInit
    | SaslOutcome
)

_STR, _SYM, _SYMS, _FIELDS = kinds.STRING, kinds.SYMBOL, kinds.SYMBOLS, kinds.FIELDS
_BOOL, _UBYTE, _USHORT, _UINT = kinds.BOOLEAN, kinds.UBYTE, kinds.USHORT, kinds.UINT
_ERROR = Nested("error", [Error])
_STATE = Nested(
    "delivery state",
    (Accepted, Rejected, Released, Modified, Received, Declared, TransactionalState),
    open_ended=True,
)
_OUTCOME = Nested("outcome", (Accepted, Rejected, Released, Modified), open_ended=True)
_SOURCE = Nested("source", [Source])
_TARGET = Nested("target or coordinator", [Target, Coordinator])

# fmt: off
define(Error, "error", 0x1D, _SYM, _STR, _FIELDS, required="condition")
define(Received, "received", 0x23, _UINT, kinds.ULONG, required="section_number section_offset")
define(Accepted, "accepted", 0x24)
define(Rejected, "rejected", 0x25, _ERROR)
define(Released, "released", 0x26)
define(Modified, "modified", 0x27, _BOOL, _BOOL, _FIELDS)
define(Source, "source", 0x28, _STR, _UINT, _SYM, _UINT, _BOOL, _FIELDS, _SYM, _FIELDS, _STATE,
       _SYMS, _SYMS)
define(Target, "target", 0x29, _STR, _UINT, _SYM, _UINT, _BOOL, _FIELDS, _SYMS)
define(Coordinator, "coordinator", 0x30, _SYMS)
define(Declare, "declare", 0x31, kinds.ANY)
define(Discharge, "discharge", 0x32, kinds.BINARY, _BOOL, required="txn_id")
define(Declared, "declared", 0x33, kinds.BINARY, required="txn_id")
define(TransactionalState, "transactional-state", 0x34, kinds.BINARY, _OUTCOME, required="txn_id")
define(Open, "open", 0x10, _STR, _STR, _UINT, _USHORT, _UINT, _SYMS, _SYMS, _SYMS, _SYMS, _FIELDS,
       required="container_id")
define(Begin, "begin", 0x11, _USHORT, _UINT, _UINT, _UINT, _UINT, _SYMS, _SYMS, _FIELDS,
       required="next_outgoing_id incoming_window outgoing_window")
define(Attach, "attach", 0x12, _STR, _UINT, _BOOL, _UBYTE, _UBYTE, _SOURCE, _TARGET, kinds.MAP,
       _BOOL, _UINT, kinds.ULONG, _SYMS, _SYMS, _FIELDS, required="name handle role")
define(Flow, "flow", 0x13, *(_UINT,) * 8, _BOOL, _BOOL, _FIELDS,
       required="incoming_window next_outgoing_id outgoing_window")
define(Transfer, "transfer", 0x14, _UINT, _UINT, kinds.BINARY, _UINT, _BOOL, _BOOL, _UBYTE, _STATE,
       _BOOL, _BOOL, _BOOL, required="handle")
define(Disposition, "disposition", 0x15, _BOOL, _UINT, _UINT, _BOOL, _STATE, _BOOL,
       required="role first")
define(Detach, "detach", 0x16, _UINT, _BOOL, _ERROR, required="handle")
define(End, "end", 0x17, _ERROR)
define(Close, "close", 0x18, _ERROR)
define(SaslMechanisms, "sasl-mechanisms", 0x40, _SYMS, required="sasl_server_mechanisms")
define(SaslInit, "sasl-init", 0x41, _SYM, kinds.BINARY, _STR, required="mechanism")
define(SaslOutcome, "sasl-outcome", 0x44, _UBYTE, kinds.BINARY, required="code")
# fmt: on


def encode_state(state: DeliveryState) -> bytes:
    """A delivery state as bytes, for `encode_disposition_frame`."""
    return _STATE.write(state)


ACCEPTED_BYTES: Final = encode_state(Accepted())
RELEASED_BYTES: Final = encode_state(Released())
