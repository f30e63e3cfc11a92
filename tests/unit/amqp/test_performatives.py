"""Performatives: golden frames, pyamqp as the peer, shortcuts and the general way, bad input."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from azure.servicebus._pyamqp import _decode as pyamqp_decode
from azure.servicebus._pyamqp import _encode as pyamqp_encode
from azure.servicebus._pyamqp import endpoints as pyamqp_endpoints
from azure.servicebus._pyamqp import outcomes as pyamqp_outcomes
from azure.servicebus._pyamqp import performatives as pyamqp

from twinbus.amqp.composites import read_composite
from twinbus.amqp.encoding import encode
from twinbus.amqp.frames import (
    decode_performative,
    encode_disposition_frame,
    encode_frame,
    encode_transfer_frame,
)
from twinbus.amqp.performatives import (
    ACCEPTED_BYTES,
    RELEASED_BYTES,
    Accepted,
    Attach,
    Begin,
    Close,
    Declared,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Performative,
    Received,
    Rejected,
    Released,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    TransactionalState,
    Transfer,
    encode_state,
)
from twinbus.amqp.types import DecodeError, Described, EncodeError, Symbol, UByte, ULong


def as_bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


GOLDEN: list[tuple[Performative, str]] = [
    (
        Open(container_id="c", max_frame_size=65536, channel_max=4999, idle_time_out=240_000),
        "00 53 10 c0 17 0a a1 01 63 40 70 00010000 60 1387 70 0003a980 40 40 40 40 40",
    ),
    (
        Begin(remote_channel=1, next_outgoing_id=0, incoming_window=5000, outgoing_window=255),
        "00 53 11 c0 10 08 60 0001 43 70 00001388 52 ff 40 40 40 40",
    ),
    (
        Attach(name="n", handle=1, role=True, max_message_size=0),
        "00 53 12 c0 12 0e a1 01 6e 52 01 41 40 40 40 40 40 42 40 44 40 40 40",
    ),
    (
        Flow(incoming_window=1, next_outgoing_id=2, outgoing_window=3, handle=0, link_credit=100),
        "00 53 13 c0 10 0b 40 52 01 52 02 52 03 43 40 52 64 40 42 42 40",
    ),
    (
        Transfer(handle=0, delivery_id=1, delivery_tag=b"\x01", message_format=0),
        "00 53 14 c0 0f 0b 43 52 01 a0 01 01 43 42 42 40 40 42 42 42",
    ),
    (
        Disposition(role=True, first=3, last=9, settled=True, state=Accepted()),
        "00 53 15 c0 0c 06 41 52 03 52 09 41 00 53 24 45 42",
    ),
    (
        Detach(handle=2, closed=True, error=Error("amqp:not-found")),
        "00 53 16 c0 1c 03 52 02 41 00 53 1d c0 13 03 a3 0e 616d71703a6e6f742d666f756e64 40 40",
    ),
    (End(), "00 53 17 c0 02 01 40"),
    (Close(), "00 53 18 c0 02 01 40"),
    (
        SaslMechanisms(["ANONYMOUS"]),
        "00 53 40 c0 0f 01 e0 0c 01 a3 09 414e4f4e594d4f5553",
    ),
    (SaslInit("PLAIN", b"\x00u\x00p"), "00 53 41 c0 0f 03 a3 05 504c41494e a0 04 00750070 40"),
    (SaslOutcome(0), "00 53 44 c0 04 02 50 00 40"),
]


@pytest.mark.parametrize(("performative", "wire"), GOLDEN)
def test_frames_are_written_in_full_length_and_read_back(
    performative: Performative, wire: str
) -> None:
    body = as_bytes(wire)
    frame = encode_frame(7, performative, b"payload", frame_type=1)
    assert frame == struct.pack(">IBBH", len(body) + 15, 2, 1, 7) + body + b"payload"
    assert decode_performative(body + b"payload") == (performative, len(body))
    assert decode_performative(memoryview(body)) == (performative, len(body))


@pytest.mark.parametrize(("performative", "wire"), GOLDEN)
def test_wide_and_symbolic_descriptors_and_wide_lists_are_read(
    performative: Performative, wire: str
) -> None:
    body = as_bytes(wire)
    count, fields = body[5], body[6:]
    wide_list = struct.pack(">BII", 0xD0, len(fields) + 4, count) + fields
    name = {0x40: "sasl-mechanisms", 0x41: "sasl-init", 0x44: "sasl-outcome"}.get(
        body[2], type(performative).__name__.lower()
    )
    for descriptor in (body[1:3], struct.pack(">BQ", 0x80, body[2]), encode_symbol(name)):
        data = b"\x00" + descriptor + wide_list
        assert decode_performative(data + b"p") == (performative, len(data))


def encode_symbol(name: str) -> bytes:
    return encode(Symbol(f"amqp:{name}:list"))


@pytest.mark.parametrize(
    ("wire", "performative"),
    [
        ("00 53 10 c0 04 01 a1 01 63", Open(container_id="c")),
        ("00 53 12 c0 06 03 a1 01 6e 43 42", Attach(name="n", handle=0, role=False)),
        ("00 53 13 c0 05 04 40 43 43 43", Flow()),
        ("00 53 14 c0 02 01 43", Transfer(handle=0)),
        ("00 53 14 c0 06 03 43 43 a0 01 01", Transfer(delivery_id=0, delivery_tag=b"\x01")),
        ("00 53 14 c0 07 06 43 40 40 40 40 41", Transfer(more=True)),
        ("00 53 15 c0 03 02 41 43", Disposition(role=True)),
        ("00 53 15 c0 04 03 42 43 40", Disposition()),
        ("00 53 16 c0 02 01 43", Detach()),
        ("00 53 17 45", End()),
        ("00 53 18 45", Close()),
        ("00 53 18 c0 01 00", Close()),
        ("00 53 40 c0 04 01 a3 01 58", SaslMechanisms(["X"])),
    ],
)
def test_trimmed_lists_are_read_with_defaults(wire: str, performative: Performative) -> None:
    assert decode_performative(as_bytes(wire))[0] == performative


STATES = [
    Accepted(),
    Released(),
    Rejected(),
    Rejected(Error("com.microsoft:dead-letter", "why", {"DeadLetterReason": "r"})),
    Modified(delivery_failed=True, undeliverable_here=True),
    Modified(message_annotations={"k": 1}),
    Received(1, 2**40),
    Declared(b"txn"),
    TransactionalState(b"txn"),
    TransactionalState(b"txn", Modified(message_annotations={"k": 1})),
    Described(ULong(0x3F), [b"own", None]),
]


@pytest.mark.parametrize("state", STATES, ids=repr)
def test_delivery_states_survive_the_wire(state: Any) -> None:
    for performative in (
        Disposition(role=True, first=1, last=2, settled=True, state=state),
        Transfer(delivery_id=1, delivery_tag=b"t", message_format=0, state=state),
    ):
        for _ in range(2):  # the second time shortcuts remember
            assert decode_performative(encode_frame(0, performative)[8:])[0] == performative
    frame = encode_disposition_frame(3, True, 1, 2, True, encode_state(state))
    assert struct.unpack(">IBBH", frame[:8]) == (len(frame), 2, 0, 3)
    assert decode_performative(frame[8:]) == (
        Disposition(role=True, first=1, last=2, settled=True, state=state),
        len(frame) - 8,
    )


def test_what_shortcuts_remember_is_never_shared_if_it_can_change() -> None:
    body = encode_frame(0, Disposition(state=Modified(message_annotations={"k": 1})))[8:]
    first, second = (read_disposition(body).state for _ in range(2))
    assert isinstance(first, Modified)
    assert first.message_annotations is not None
    first.message_annotations.clear()
    assert second == read_disposition(body).state == Modified(message_annotations={"k": 1})


def read_disposition(body: bytes) -> Disposition:
    performative, _ = decode_performative(body)
    assert isinstance(performative, Disposition)
    return performative


def test_a_long_state_still_makes_a_disposition_frame() -> None:
    for size in range(190, 280):
        state = Rejected(Error("c:" + "x" * size))
        frame = encode_disposition_frame(0, False, 5, 6, True, encode_state(state))
        assert struct.unpack(">I", frame[:4])[0] == len(frame)
        expected = Disposition(role=False, first=5, last=6, settled=True, state=state)
        assert decode_performative(frame[8:])[0] == expected


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("message_format", [0, 0x80013700])
@pytest.mark.parametrize("tag", [b"", b"\x01", bytes(range(32))])
def test_the_transfer_writer_makes_what_the_general_way_reads(
    settled: bool, more: bool, message_format: int, tag: bytes
) -> None:
    frame = encode_transfer_frame(9, 3, 2**32 - 1, tag, message_format, settled, b"body", more)
    assert struct.unpack(">IBBH", frame[:8]) == (len(frame), 2, 0, 9)
    expected = Transfer(
        handle=3,
        delivery_id=2**32 - 1,
        delivery_tag=tag,
        message_format=message_format,
        settled=settled,
        more=more,
    )
    body = frame[8:]
    assert read_composite(body, 0) == decode_performative(body) == (expected, len(body) - 4)
    assert frame.endswith(b"body")


def test_constants_are_the_outcomes_without_fields() -> None:
    assert as_bytes("00 53 24 45") == ACCEPTED_BYTES
    assert as_bytes("00 53 26 45") == RELEASED_BYTES


def test_termini_repeat_the_bytes_they_were_read_from() -> None:
    source = "00 80 0000000000000028 d0 0000000a 00000001 b1 00000001 71"
    target = "00 53 29 c0 05 02 a1 01 74 43"
    fields = as_bytes(f"a1 01 6e 43 41 40 40 {source} {target}")
    attach, _ = decode_performative(b"\x00\x53\x12\xc0" + bytes((len(fields) + 1, 7)) + fields)
    assert isinstance(attach, Attach)
    assert attach.source == Source(address="q")
    assert attach.source is not None
    assert attach.source.raw == as_bytes(source)
    assert attach.target == Target(address="t", durable=0)
    reply = encode_frame(0, attach)
    assert as_bytes(source + target) in reply
    attach.source.raw = None
    assert encode_frame(0, attach).count(as_bytes("00 53 28 c0 0e 0b a1 01 71")) == 1


def test_map_keys_of_fields_are_written_as_symbols() -> None:
    frame = encode_frame(0, Attach(name="n", properties={"com.microsoft:timeout": None}))
    assert b"\xa3\x15com.microsoft:timeout" in frame


REFUSED = {
    "": "ends beyond",
    "41 40 40": "byte 0 is 0x41, not the 0x00",
    "00 53": "ends beyond",
    "00 53 10": "ends beyond",
    "00 53 10 40": "not a list",
    "00 53 10 45": "open.container_id is missing",
    "00 53 10 c0 03 01 52 05": "open.container_id: 5 is not a string",
    "00 53 10 c0 05 02 a1 01 63": "claims to end",
    "00 53 10 c0 05 01 a1 01 63 40": "the fields of open end at byte 9, their list at 10",
    "00 53 12 c0 06 03 a1 01 6e 43 40": "attach.role is missing",
    "00 53 12 c0 0b 06 a1 01 6e 43 41 40 40 00": "ends beyond|claims to end",
    "00 53 12 c0 0c 06 a1 01 6e 43 41 40 40 00 53 29 45": "attach.source: target is not a source",
    "00 53 12 c0 0c 06 a1 01 6e 43 41 40 40 00 53 99 45": "attach.source: it is not a source",
    "00 53 13 c0 05 04 40 40 43 43": "flow.incoming_window is missing",
    "00 53 13 c0 0c 0b 40 40 43 43 40 40 40 40 42 42 40": "flow.incoming_window is missing",
    "00 53 14 c0 02 01 40": "transfer.handle is missing",
    "00 53 14 c0 02 01 41": "transfer.handle: True is not a uint",
    "00 53 14 c0 0c 0b 43 43 a0 09 40 40 40 40 40 40 40": "claims to end|ends beyond",
    "00 53 14 c0 05 04 43 43 40 41": "transfer.message_format: True is not a uint",
    "00 53 14 c0 06 05 43 43 40 43 43": "transfer.settled: 0 is not a boolean",
    "00 53 14 c0 0d 0c 43 40 40 40 40 40 40 40 40 40 40 40": "transfer has 12 fields, at most 11",
    "00 53 15 c0 07 05 41 43 40 40 00 53 10 45": "claims to end|ends beyond|not a delivery",
    "00 53 15 c0 09 05 41 43 40 40 00 53 10 45": "state: open is not a delivery state",
    "00 53 14 c0 06 04 43 43 40 43 40": "the fields of transfer end at byte 10, their list at 11",
    "00 53 15 c0 05 03 42 43 40 40": "the fields of disposition end at byte 9, their list at 10",
    "00 53 15 c0 04 03 43 43 40": "disposition.role: 0 is not a boolean",
    "00 53 15 d0 00000007 ffffffff 42 43 40": "disposition has 4294967295 fields",
    "00 53 16 c0 07 03 43 42 00 53 1d 45": "detach.error: error.condition is missing",
    "00 53 24 45": "not a performative",
    "00 53 28 45": "not a performative",
    "00 53 99 45": "not a performative",
    "00 45 45": "not a performative",
    "00 53 40 c0 06 01 e0 03 01 50 05": "sasl-mechanisms.sasl_server_mechanisms: .* symbols",
}


@pytest.mark.parametrize(("wire", "reason"), REFUSED.items())
def test_a_frame_that_breaks_the_rules_is_a_decode_error_of_one_line(
    wire: str, reason: str
) -> None:
    with pytest.raises(DecodeError, match=reason) as caught:
        decode_performative(as_bytes(wire))
    assert "\n" not in str(caught.value)


def test_a_value_of_the_wrong_type_cannot_be_written() -> None:
    with pytest.raises(EncodeError, match="'x' cannot be written as uint"):
        encode_frame(0, Flow(handle="x"))  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match="cannot be written as ushort"):
        encode_frame(0, Begin(remote_channel=70_000))


def filled(frame: Any, **fields: object) -> Any:
    """A named tuple of pyamqp with None for all fields that are not given."""
    return frame(**(dict.fromkeys(frame._fields) | fields))


THEIR_SOURCE = filled(
    pyamqp_endpoints.Source, address="amqps://h/q", durable=0, timeout=0, dynamic=False
)
THEIR_TARGET = filled(pyamqp_endpoints.Target, address="t")

SENT: list[tuple[Any, Performative, dict[str, object]]] = [
    # Their frame, what we read, and the fields that theirs has in another form.
    (pyamqp.OpenFrame, Open("c", hostname="h", max_frame_size=65536, channel_max=99), {}),
    (pyamqp.BeginFrame, Begin(None, 0, 65536, 65536), {}),
    (
        pyamqp.AttachFrame,
        Attach(
            name="n",
            role=True,
            snd_settle_mode=0,
            rcv_settle_mode=1,
            source=Source(address="amqps://h/q", durable=0, timeout=0),
            target=Target(address="t"),
            properties={"com.microsoft:timeout": 5},
        ),
        {
            "send_settle_mode": 0,
            "source": THEIR_SOURCE,
            "target": THEIR_TARGET,
            "properties": {b"com.microsoft:timeout": {"TYPE": "UINT", "VALUE": 5}},
        },
    ),
    (pyamqp.FlowFrame, Flow(1, 65536, 300, 65536, 0, 0, 100, drain=True), {}),
    (
        pyamqp.TransferFrame,
        Transfer(2, 300, b"tag", 0x80013700, more=True),
        {"settled": False, "payload": b"body"},
    ),
    (
        pyamqp.DispositionFrame,
        Disposition(role=True, first=7, last=7, state=Accepted()),
        {"state": filled(pyamqp_outcomes.Accepted)},
    ),
    (
        pyamqp.DispositionFrame,
        Disposition(role=True, first=7, last=7, state=Modified(delivery_failed=True)),
        {"state": filled(pyamqp_outcomes.Modified, delivery_failed=True, undeliverable_here=False)},
    ),
    (pyamqp.DetachFrame, Detach(handle=0, closed=True), {}),
    (pyamqp.EndFrame, End(), {}),
    (pyamqp.CloseFrame, Close(), {}),
    (pyamqp.SASLInit, SaslInit("ANONYMOUS", b"x", "h"), {"mechanism": b"ANONYMOUS"}),
]
THEIRS = [
    (
        filled(frame, **{n: getattr(ours, n) for n in frame._fields if hasattr(ours, n)} | other),
        ours,
    )
    for frame, ours, other in SENT
]


@pytest.mark.parametrize(("theirs", "ours"), THEIRS, ids=lambda frame: type(frame).__name__)
def test_frames_of_the_python_sdk_are_read(theirs: Any, ours: Performative) -> None:
    _, data = pyamqp_encode.encode_frame(theirs)
    assert data is not None
    performative, offset = decode_performative(bytes(data))
    assert performative == ours
    assert bytes(data[offset:]) == (b"body" if isinstance(ours, Transfer) else b"")


def test_the_sdk_frames_of_every_message_take_the_shortcut(monkeypatch: pytest.MonkeyPatch) -> None:
    def general_way(*_: object) -> None:
        raise AssertionError("the general way was taken")

    monkeypatch.setattr("twinbus.amqp.frames.read_composite", general_way)
    for theirs, ours in THEIRS:
        if isinstance(ours, (Flow, Transfer, Disposition)):
            _, data = pyamqp_encode.encode_frame(theirs)
            assert data is not None
            assert decode_performative(data)[0] == ours
            assert decode_performative(encode_frame(0, ours)[8:])[0] == ours


@pytest.mark.parametrize(("performative", "wire"), GOLDEN)
def test_the_python_sdk_reads_our_frames_field_by_field(
    performative: Performative, wire: str
) -> None:
    code, fields = pyamqp_decode.decode_frame(memoryview(as_bytes(wire)))
    assert code == as_bytes(wire)[2]
    ours = [getattr(performative, name) for name in type(performative).__dataclass_fields__]
    for theirs, value in zip(fields, ours, strict=False):
        if isinstance(value, (str, int, bytes)):
            assert theirs == (value.encode() if isinstance(value, str) else value)


def test_the_python_sdk_reads_a_rejection_and_its_error() -> None:
    state = Rejected(Error("com.microsoft:message-lock-lost", "gone"))
    frame = encode_disposition_frame(0, True, 1, 1, True, encode_state(state))
    _, fields = pyamqp_decode.decode_frame(memoryview(frame)[8:])
    assert fields[4] == {"rejected": [[b"com.microsoft:message-lock-lost", b"gone", None]]}


def test_settle_modes_are_ubytes() -> None:
    assert encode(UByte(1)) in encode_frame(0, Attach(name="n", snd_settle_mode=1))
