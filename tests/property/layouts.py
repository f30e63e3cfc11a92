"""Messages as the official SDKs lay them out, byte by byte, and a strategy for more layouts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from hypothesis import strategies as st

from twinbus.servicebus.names import PING_CONTENT_TYPE

NULL, TRUE, FALSE = b"\x40", b"\x41", b"\x42"
CREATED_MS = 1_700_000_000_000


def text(value: str) -> bytes:
    """A short string."""
    return bytes((0xA1, len(value.encode()))) + value.encode()


def symbol(value: str) -> bytes:
    return bytes((0xA3, len(value))) + value.encode()


def uint(value: int) -> bytes:
    return b"\x70" + value.to_bytes(4)


def time(ms: int) -> bytes:
    return b"\x83" + ms.to_bytes(8)


def section(code: int, form: int, items: tuple[bytes, ...], *, is_wide: bool = False) -> bytes:
    """A section around a list (form C0) or a map (form C1)."""
    content = b"".join(items)
    head = bytes((0x00, 0x53, code))
    if is_wide or len(content) > 254:
        sizes = (len(content) + 4).to_bytes(4) + len(items).to_bytes(4)
        return head + bytes((form + 0x10,)) + sizes + content
    return head + bytes((form, len(content) + 1, len(items))) + content


@dataclass(frozen=True)
class Layout:
    """What the messages of one sender have in common."""

    header: tuple[bytes, ...] | None = ()
    marks: tuple[bytes, ...] | None = None
    """Delivery annotations."""
    annotations: tuple[bytes, ...] | None = None
    properties: tuple[bytes, ...] = ()
    """The fields behind the message id."""
    times_at: int | None = None
    """Place among these where absolute expiry and creation time are put in, if they are."""
    application: tuple[bytes, ...] | None = None
    wide: frozenset[str] = field(default_factory=frozenset)
    """Sections with sizes of four bytes."""

    def message(self, message_id: bytes, body: bytes, created_ms: int = CREATED_MS) -> bytes:
        """A message with that encoded id."""
        fields = self.properties
        if self.times_at is not None:
            at, times = self.times_at, (time(created_ms + 60_000), time(created_ms))
            fields = fields[:at] + times + fields[at:]
        parts = [
            (0x70, 0xC0, self.header, "header"),
            (0x71, 0xC1, self.marks, "marks"),
            (0x72, 0xC1, self.annotations, "annotations"),
            (0x73, 0xC0, (message_id, *fields), "properties"),
            (0x74, 0xC1, self.application, "application"),
        ]
        wire = b"".join(
            section(code, form, items, is_wide=name in self.wide)
            for code, form, items, name in parts
            if items is not None
        )
        if "body" in self.wide or len(body) > 255:
            return wire + b"\x00\x53\x75\xb0" + len(body).to_bytes(4) + body
        return wire + b"\x00\x53\x75\xa0" + bytes((len(body),)) + body


APPLICATION = (text("tenant"), text("blue"), text("number"), b"\x54\x01")
TTL = uint(60_000)

SDKS = {
    "Go": Layout(header=(TRUE, NULL, NULL), properties=(NULL,) * 5),
    "Go, time to live": Layout(header=(TRUE, NULL, TTL), properties=(NULL,) * 5),
    "JavaScript": Layout(
        header=(NULL,) * 5, properties=(*(NULL,) * 5, symbol("text/plain")),
        wide=frozenset({"header", "properties"}),
    ),
    "JavaScript, time to live, properties": Layout(
        header=(NULL, NULL, TTL), properties=(NULL,) * 7, times_at=7, application=APPLICATION,
        wide=frozenset({"properties", "application"}),
    ),
    "Java": Layout(
        header=(FALSE, b"\x50\x04", NULL, FALSE), marks=(), annotations=(),
        properties=(NULL,) * 12, application=(),
    ),
    "Java, time to live, properties": Layout(
        header=(FALSE, b"\x50\x04", TTL), annotations=(), properties=(NULL,) * 7, times_at=7,
        application=APPLICATION, wide=frozenset({"annotations", "application", "body"}),
    ),
    ".NET": Layout(header=None, properties=(NULL,) * 3, wide=frozenset({"body"})),
    ".NET, time to live": Layout(
        header=(TRUE, NULL, TTL), properties=(NULL,) * 7, times_at=7, application=APPLICATION,
        annotations=(symbol("x-opt-partition-key"), text("blue")), wide=frozenset({"annotations"}),
    ),
}  # fmt: skip


def python_message(message_id: str, body: bytes, *, with_more: bool = False) -> bytes:
    """What the Python SDK sends."""
    message = ServiceBusMessage(body, message_id=message_id)
    if with_more:
        message = ServiceBusMessage(
            body,
            message_id=message_id,
            time_to_live=timedelta(minutes=1),
            application_properties={"tenant": "blue", "number": 1},
            content_type="text/plain",
        )
    wire = bytearray()
    encode_payload(wire, PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message))
    return bytes(wire)


_ttls = st.sampled_from([NULL, uint(0), b"\x43", b"\x52\x07", TTL, uint(2**32 - 1)])
_fields = st.sampled_from([NULL, text("a"), b"\xb1\x00\x00\x00\x01a"])
_ids = st.sampled_from([NULL, text("a"), b"\x53\x01", b"\x98" + bytes(16)])
_types = st.sampled_from([NULL, symbol("text/plain"), text("application/octet-stream")])
_numbers = st.sampled_from([NULL, b"\x43", uint(9)])
_entries = st.sampled_from([(), APPLICATION, (text("k"), NULL)])
_odd = st.sampled_from(
    [
        (5, symbol(PING_CONTENT_TYPE)),
        (7, text("session")),
        (7, text("")),
        (0, text("no binary")),
    ]
)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Layouts of plain messages, most of them, and of some that are not."""
    given = [_fields, _fields, _fields, _ids, _types, _types]
    fields: tuple[bytes, ...] = (NULL, *map(draw, given), NULL, draw(_numbers), draw(_fields))
    times_at = draw(st.none() | st.just(7))
    if times_at is None:
        fields = (*fields[:7], draw(st.sampled_from([NULL, time(5)])), NULL, *fields[7:])
    elif draw(st.booleans()):
        fields = fields[:7]
    if draw(st.integers(0, 9)) == 0:
        place, value = draw(_odd)
        if times_at is None and place > 6:
            place += 2
        fields = (*fields[:place], value, *fields[place + 1 :])
    annotations = st.sampled_from(
        [None, (), (symbol("x-opt-partition-key"), text("p")), (text("note"), text("n"))]
        + [(symbol("x-opt-scheduled-enqueue-time"), time(CREATED_MS + 1))] * draw(st.integers(0, 1))
    )
    header = st.none() | st.tuples(st.sampled_from([NULL, TRUE]), st.just(NULL), _ttls)
    return Layout(
        header=draw(header),
        marks=draw(st.sampled_from([None, None, (), (symbol("m"), text("v"))])),
        annotations=draw(annotations),
        properties=fields,
        times_at=times_at,
        application=draw(st.none() | _entries),
        wide=draw(
            st.frozensets(
                st.sampled_from(["header", "annotations", "properties", "application", "body"])
            )
        ),
    )
