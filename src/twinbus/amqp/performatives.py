"""Performatives: the frames two peers exchange, and their way to bytes and back."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from twinbus.amqp.composites import read_composite, write_composite
from twinbus.amqp.decoding import MALFORMED, malformed
from twinbus.amqp.fast import (
    ACCEPTED_BYTES,
    RELEASED_BYTES,
    decode_disposition,
    decode_flow,
    decode_transfer,
    encode_disposition_frame,
    encode_state,
    encode_transfer_frame,
)
from twinbus.amqp.frames import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)
from twinbus.amqp.skipping import Wire
from twinbus.amqp.states import (
    Accepted,
    Coordinator,
    DeliveryState,
    Error,
    Modified,
    Received,
    Rejected,
    Released,
    Source,
    Target,
)
from twinbus.amqp.types import DecodeError

__all__ = [
    "ACCEPTED_BYTES",
    "RELEASED_BYTES",
    "Accepted",
    "Attach",
    "Begin",
    "Close",
    "Coordinator",
    "DeliveryState",
    "Detach",
    "Disposition",
    "End",
    "Error",
    "Flow",
    "Modified",
    "Open",
    "Performative",
    "Received",
    "Rejected",
    "Released",
    "SaslInit",
    "SaslMechanisms",
    "SaslOutcome",
    "Source",
    "Target",
    "Transfer",
    "decode_performative",
    "decode_transfer",
    "encode_disposition_frame",
    "encode_frame",
    "encode_state",
    "encode_transfer_frame",
]

_PERFORMATIVES: Final = frozenset(Performative.__args__)
_FRAME_HEAD: Final = struct.Struct(">IBBH").pack

_SHORTCUTS: Final[dict[int, Callable[[Wire], tuple[Any, int] | None]]] = {
    0x13: decode_flow,
    0x14: decode_transfer,
    0x15: decode_disposition,
}


def encode_frame(
    channel: int, performative: Performative, payload: bytes = b"", *, frame_type: int = 0
) -> bytes:
    """A whole frame: header, performative with every field, payload. `frame_type` 1 is SASL."""
    body = write_composite(performative)
    return _FRAME_HEAD(8 + len(body) + len(payload), 2, frame_type, channel) + body + payload


def decode_performative(body: Wire) -> tuple[Performative, int]:
    """The performative a frame body begins with, and the offset where its payload starts."""
    try:
        if body[1] == 0x53 and body[2] in _SHORTCUTS and body[0] == 0x00:
            found = _SHORTCUTS[body[2]](body)
            if found is not None:
                return found
        performative, offset = read_composite(body, 0)
    except MALFORMED as error:
        raise malformed(error, body) from None
    if type(performative) not in _PERFORMATIVES:
        raise DecodeError(f"{performative!r:.80} is not a performative")
    return performative, offset
