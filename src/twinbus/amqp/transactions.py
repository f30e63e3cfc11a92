"""Messages to a coordinator: the body of each declares a transaction or discharges one."""

from __future__ import annotations

from twinbus.amqp.composites import read_composite, write_composite
from twinbus.amqp.decoding import MALFORMED, malformed
from twinbus.amqp.encoding import encode
from twinbus.amqp.message import decode_value, split
from twinbus.amqp.performatives import Declare, Discharge
from twinbus.amqp.types import DecodeError

LOCAL_TRANSACTIONS = "amqp:local-transactions"
MULTIPLE_IN_SESSION = "amqp:multi-txns-per-ssn"
MULTIPLE_SESSIONS = "amqp:multi-ssns-per-txn"
"""Capabilities of a coordinator: several transactions of one session, several sessions in one."""

_VALUE_SECTION = b"\x00\x53\x77"


def encode_request(request: Declare | Discharge) -> bytes:
    """The message that asks a coordinator for this."""
    return _VALUE_SECTION + write_composite(request)


def read_request(payload: bytes) -> Declare | Discharge:
    """What a message asks the coordinator for; `DecodeError` if it asks for nothing known."""
    # Written again, so that every encoding of the section and of its value is read the same way.
    value = encode(decode_value(split(payload).body))
    if value[:1] != b"\x00":
        raise DecodeError("the body is neither a declare nor a discharge")
    try:
        request, _ = read_composite(value, 0)
    except MALFORMED as error:
        raise malformed(error, value) from None
    if not isinstance(request, Declare | Discharge):
        raise DecodeError("the body is neither a declare nor a discharge")
    return request
