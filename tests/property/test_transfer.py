"""The way into the backlog and back is an identity, for any message of either kind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sdk_restoring import from_backlog_message
from twinbus.amqp import types
from twinbus.amqp.encoding import encode
from twinbus.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    Sections,
    decode_header,
    decode_map,
    decode_properties,
    encode_header,
    encode_map_section,
    encode_properties,
    join,
    split,
)
from twinbus.amqp.types import DecodeError
from twinbus.errors import BacklogGuardError, ReservedPropertyError, TransferError
from twinbus.servicebus.names import (
    DATE_MAX_MS,
    DATE_MIN_MS,
    FOREVER_MS,
    SESSION_ID_MAX,
    is_entity_name,
)
from twinbus.transfer.aliases import RESERVED_NAMES, overhead_bytes
from twinbus.transfer.sdk import to_backlog_message
from twinbus.transfer.sections import (
    aliases_of,
    from_backlog_sections,
    to_backlog_sections,
    without_delivery_marks,
)
from twinbus.transfer.unpacking import unpack

NOW_MS = 1_800_000_000_000
UINT_MAX = 2**32 - 1
SCHEDULED = "x-opt-scheduled-enqueue-time"
PARTITION_KEY = "x-opt-partition-key"

TEXT = st.text(max_size=12)
NAMES = TEXT.filter(lambda name: name not in RESERVED_NAMES)
"""Names of application properties. Hypothesis knows the literals of our sources, aliases too."""
LONG = st.integers(-(2**63), 2**63 - 1)
SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    LONG,
    st.integers(0, 255).map(types.UByte),
    st.integers(0, UINT_MAX).map(types.UInt),
    st.integers(0, 2**64 - 1).map(types.ULong),
    st.integers(-(2**31), 2**31 - 1).map(types.Int),
    LONG.map(types.Timestamp),
    st.floats(allow_nan=False),
    st.floats(width=32, allow_nan=False).map(types.Float32),
    TEXT,
    st.from_regex(r"[a-z:]{1,12}", fullmatch=True).map(types.Symbol),
    st.binary(max_size=12),
    st.uuids(),
    st.binary(min_size=8, max_size=8).map(lambda data: types.Decimal(0x84, data)),
)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(TEXT, inner, max_size=3),
        st.builds(types.Described, st.just(types.Symbol("a:b")), inner),
    ),
    max_leaves=4,
)
PATHS = st.from_regex(
    r"[a-z0-9_]([a-z0-9._~-]{0,6}[a-z0-9_])?(/[a-z0-9_]{1,8}){0,3}", fullmatch=True
)
TIMES = st.integers(0, 2**45)
SESSIONS = st.one_of(st.none(), st.text(max_size=8), st.text(min_size=120, max_size=128))
IDS = st.one_of(st.none(), TEXT, st.uuids(), st.binary(max_size=8))

HEADERS = st.builds(
    Header,
    durable=st.one_of(st.none(), st.booleans()),
    priority=st.one_of(st.none(), st.integers(0, 255)),
    ttl=st.one_of(st.none(), st.integers(0, UINT_MAX)),
    delivery_count=st.one_of(st.none(), st.integers(0, 9)),
)


@st.composite
def properties(draw: st.DrawFn) -> Properties:
    made = Properties(
        message_id=draw(IDS),
        subject=draw(st.one_of(st.none(), TEXT)),
        correlation_id=draw(IDS),
        group_id=draw(SESSIONS),
        group_sequence=draw(st.one_of(st.none(), st.integers(0, UINT_MAX))),
        reply_to_group_id=draw(st.one_of(st.none(), TEXT)),
    )
    if draw(st.booleans()):
        made.creation_time = draw(TIMES)
        if draw(st.booleans()):
            made.absolute_expiry_time = made.creation_time + draw(st.integers(0, 2**44))
    elif draw(st.booleans()):
        made.absolute_expiry_time = NOW_MS + draw(st.integers(-5, 2**44))
    return made


def section(code: int, entries: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[bytes]:
    return st.one_of(st.just(b""), entries.map(lambda made: encode_map_section(code, made)))


@st.composite
def messages(draw: st.DrawFn) -> Sections:
    """Any message, its sections there or not, its maps now and then past 255 bytes."""
    about = draw(st.one_of(st.none(), properties()))
    annotations: dict[str, Any] = draw(st.dictionaries(TEXT, VALUES, max_size=3))
    if draw(st.booleans()):
        annotations[SCHEDULED] = types.Timestamp(draw(TIMES))
    if draw(st.booleans()):
        session = about.group_id if about is not None else None
        annotations[PARTITION_KEY] = draw(st.one_of(st.just(session), TEXT))
    custom = st.dictionaries(NAMES, st.one_of(SIMPLE, st.just("long " * 40)), max_size=4)
    body = draw(
        st.one_of(
            st.just(b""),
            st.lists(st.binary(max_size=300), min_size=1, max_size=3).map(
                lambda parts: b"".join(
                    encode(types.Described(types.ULong(0x75), part)) for part in parts
                )
            ),
            VALUES.map(lambda value: encode(types.Described(types.ULong(0x77), value))),
        )
    )
    header = draw(st.one_of(st.none(), HEADERS))
    return Sections(
        encode_header(header) if header is not None else b"",
        draw(section(DELIVERY_ANNOTATIONS, st.dictionaries(TEXT, VALUES, max_size=2))),
        encode_map_section(MESSAGE_ANNOTATIONS, annotations) if annotations else b"",
        encode_properties(about) if about is not None else b"",
        draw(section(APPLICATION_PROPERTIES, custom)),
        body,
        draw(section(FOOTER, st.dictionaries(TEXT, VALUES, max_size=2))),
    )


def typed(value: Any) -> Any:
    """A value with the AMQP types of all its parts, so that equal means of equal type."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, types.Described):
        return "described", typed(value.descriptor), typed(value.value)
    return type(value).__name__, value


def lifetime_ms(sections: Sections) -> int | None:
    """The time to live that a broker would read."""
    ttl = decode_header(sections.header).ttl
    about = decode_properties(sections.properties)
    lifetime = None
    if about.absolute_expiry_time is not None:
        began = NOW_MS if about.creation_time is None else about.creation_time
        lifetime = max(about.absolute_expiry_time - began, 1)
    if ttl is None or (ttl == UINT_MAX and lifetime is not None):
        return lifetime if ttl is None or lifetime is None else max(ttl, lifetime)
    return ttl


def untimed(sections: Sections) -> tuple[Header, Properties]:
    """Header and properties without the time to live and what derives from it."""
    header, about = decode_header(sections.header), decode_properties(sections.properties)
    header.ttl = None
    if about.absolute_expiry_time is not None:
        about.absolute_expiry_time = about.creation_time = None
    return header, about


OWN_ID = "0123456789abcdef" * 2
OWN_IDS = st.sampled_from([None, OWN_ID])


@settings(max_examples=max(300, settings().max_examples))
@given(messages(), PATHS, OWN_IDS)
def test_any_raw_message_comes_back_as_it_was(
    message: Sections, path: str, own_id: str | None
) -> None:
    assert split(join(message)) == message
    backlog = to_backlog_sections(message, path, own_id=own_id, now_ms=NOW_MS)
    back, aliases = from_backlog_sections(backlog, now_ms=NOW_MS)
    assert aliases.path == path
    before = decode_properties(message.properties).message_id
    if own_id is not None and before is not None:
        assert decode_properties(backlog.properties).message_id == own_id
    else:
        assert decode_properties(backlog.properties).message_id == before
    # Byte for byte, what has no part in it.
    for same in (backlog, back):
        assert same.delivery_annotations == message.delivery_annotations
        assert same.body == message.body
        assert same.footer == message.footer
    # Value for value and type for type, what left and returned.
    assert typed(decode_map(back.message_annotations)) == typed(
        decode_map(message.message_annotations)
    )
    assert typed(decode_map(back.application_properties)) == typed(
        decode_map(message.application_properties)
    )
    assert untimed(back) == untimed(message)
    assert lifetime_ms(back) == lifetime_ms(message)


@given(messages(), PATHS, OWN_IDS)
def test_in_the_backlog_nothing_expires_waits_or_needs_a_session(
    message: Sections, path: str, own_id: str | None
) -> None:
    backlog = to_backlog_sections(message, path, own_id=own_id, now_ms=NOW_MS)
    assert split(join(backlog)) == backlog
    assert decode_properties(backlog.properties).group_id is None
    assert SCHEDULED not in decode_map(backlog.message_annotations)
    assert lifetime_ms(backlog) is None
    added = len(join(backlog)) - len(join(message))
    about = decode_properties(message.properties)
    replaced = about.message_id if own_id is not None else None
    assert added <= overhead_bytes(path, session_id=about.group_id, message_id=replaced)


ANY_TEXT = st.one_of(TEXT, st.text(min_size=125, max_size=200))
ANY_PATH = st.one_of(PATHS, TEXT, st.sampled_from(["orders ", "a" * 261, "orders/$management", ""]))


@given(messages(), ANY_PATH, ANY_TEXT, LONG, LONG, OWN_IDS)
def test_the_syphon_restores_every_message_that_the_send_side_accepts(
    message: Sections, path: str, session: str, scheduled: int, expiry: int, own_id: str | None
) -> None:
    about = decode_properties(message.properties)
    about.group_id, about.absolute_expiry_time = session, expiry
    message.properties = encode_properties(about)
    annotations = {**decode_map(message.message_annotations), SCHEDULED: types.Timestamp(scheduled)}
    message.message_annotations = encode_map_section(MESSAGE_ANNOTATIONS, annotations)
    is_date = DATE_MIN_MS <= scheduled <= DATE_MAX_MS
    is_valid = is_entity_name(path) and len(session) <= SESSION_ID_MAX and is_date
    try:
        stored = to_backlog_sections(message, path, now_ms=NOW_MS, own_id=own_id)
    except BacklogGuardError:
        assert not is_valid
        return
    assert is_valid
    restored = unpack(join(stored), b"", NOW_MS)
    assert (restored.fault, restored.path, restored.session) == (None, path, session)
    sent_again = split(restored.wire)
    assert decode_map(sent_again.message_annotations)[SCHEDULED] == scheduled


@given(
    PATHS, ANY_TEXT, st.none() | LONG, st.none() | LONG, st.none() | st.integers(-5, 2**70), OWN_IDS
)
def test_the_syphon_restores_every_sdk_message_that_the_send_side_accepts(
    path: str,
    session: str,
    scheduled: int | None,
    expiry: int | None,
    ttl: int | None,
    own_id: str | None,
) -> None:
    annotations: dict[Any, Any] = {}
    if scheduled is not None:
        annotations[SCHEDULED.encode()] = {"TYPE": "TIMESTAMP", "VALUE": scheduled}
    given_message = AmqpAnnotatedMessage(
        data_body=b"x",
        header={"time_to_live": ttl},
        properties={"group_id": session, "absolute_expiry_time": expiry},
        annotations=annotations,
    )
    try:
        copy = to_backlog_message(given_message, path, now_ms=NOW_MS, own_id=own_id)
    except BacklogGuardError:
        is_date = scheduled is None or DATE_MIN_MS <= scheduled <= DATE_MAX_MS
        is_time = ttl is None or 0 <= ttl <= FOREVER_MS
        assert len(session) > SESSION_ID_MAX or not is_date or not is_time
        return
    restored = unpack(join(on_the_wire(copy)), b"", NOW_MS)
    assert (restored.fault, restored.path, restored.session) == (None, path, session)


@given(messages(), PATHS)
def test_sections_without_anything_to_clear_keep_their_very_bytes(
    message: Sections, path: str
) -> None:
    about = decode_properties(message.properties)
    if about.group_id is None and about.absolute_expiry_time is None:
        assert to_backlog_sections(message, path, now_ms=NOW_MS).properties == message.properties
    if decode_header(message.header).ttl is None:
        assert to_backlog_sections(message, path, now_ms=NOW_MS).header == message.header
    names = decode_map(message.message_annotations)
    if not {SCHEDULED, PARTITION_KEY} & set(names):
        backlog = to_backlog_sections(message, path, now_ms=NOW_MS)
        assert backlog.message_annotations == message.message_annotations
    if message.application_properties and decode_map(message.application_properties):
        back, _ = from_backlog_sections(
            to_backlog_sections(message, path, now_ms=NOW_MS), now_ms=NOW_MS
        )
        assert back.application_properties == message.application_properties


@given(messages(), st.sampled_from(sorted(RESERVED_NAMES)), SIMPLE)
def test_a_reserved_name_is_always_refused(message: Sections, name: str, value: object) -> None:
    custom = {**decode_map(message.application_properties), name: value}
    message.application_properties = encode_map_section(APPLICATION_PROPERTIES, custom)
    with pytest.raises(ReservedPropertyError) as refused:
        to_backlog_sections(message, "orders", now_ms=NOW_MS)
    assert refused.value.name == name


@given(
    st.dictionaries(st.sampled_from(sorted(RESERVED_NAMES)), VALUES, max_size=5),
    st.binary(max_size=40),
    st.booleans(),
)
def test_whatever_lies_in_a_backlog_is_read_or_refused_in_our_own_words(
    custom: dict[str, Any], noise: bytes, broken: bool
) -> None:
    raw = encode_map_section(APPLICATION_PROPERTIES, custom)
    message = Sections(application_properties=noise + raw if broken else raw)
    try:
        from_backlog_sections(without_delivery_marks(message), now_ms=NOW_MS)
    except (TransferError, DecodeError):
        return


DATES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
SDK_VALUES = st.one_of(
    st.booleans(), st.integers(-(2**31), 2**31 - 1), st.floats(allow_nan=False), TEXT, st.uuids()
)


@st.composite
def sdk_messages(draw: st.DrawFn) -> ServiceBusMessage:
    session = draw(st.one_of(st.none(), st.text(min_size=1, max_size=8)))
    key = draw(st.one_of(st.none(), st.just(session), st.just("other")))
    if session is not None and key not in (None, session):
        key = None
    custom: Any = draw(st.one_of(st.none(), st.dictionaries(NAMES, SDK_VALUES, max_size=3)))
    return ServiceBusMessage(
        draw(st.one_of(st.none(), st.binary(max_size=50), TEXT)),
        session_id=session,
        partition_key=key,
        message_id=draw(st.one_of(st.none(), TEXT)),
        subject=draw(st.one_of(st.none(), TEXT)),
        time_to_live=draw(st.one_of(st.none(), st.integers(1, 10**6).map(seconds))),
        scheduled_enqueue_time_utc=draw(st.one_of(st.none(), DATES)),
        application_properties=custom,
    )


def seconds(count: int) -> timedelta:
    return timedelta(seconds=count)


def on_the_wire(message: Any) -> Sections:
    annotated = getattr(message, "raw_amqp_message", message)
    outgoing = PyamqpTransport.to_outgoing_amqp_message(annotated)
    return split(bytes(encode_payload(bytearray(), outgoing)))


def assert_same(back: Sections, sent: Sections) -> None:
    assert untimed(back) == untimed(sent)
    assert decode_header(back.header).ttl == decode_header(sent.header).ttl
    for name in ("message_annotations", "application_properties"):
        assert typed(decode_map(getattr(back, name))) == typed(decode_map(getattr(sent, name)))
    assert back.body == sent.body


@given(sdk_messages(), PATHS, OWN_IDS)
def test_any_sdk_message_comes_back_as_it_was(
    message: ServiceBusMessage, path: str, own_id: str | None
) -> None:
    sent = on_the_wire(message)
    before = repr(vars(message.raw_amqp_message))
    copy = to_backlog_message(message, path, own_id=own_id, now_ms=NOW_MS)
    back, aliases = from_backlog_message(copy)
    assert aliases.path == path
    assert_same(on_the_wire(back), sent)
    assert repr(vars(message.raw_amqp_message)) == before
    # Over the wire and back by the raw road, as the syphon does it, and as an SDK receiver would.
    stored = on_the_wire(copy)
    assert aliases_of(stored) == aliases
    assert_same(from_backlog_sections(stored, now_ms=NOW_MS)[0], sent)
    received = AmqpAnnotatedMessage(message=decode_payload(memoryview(join(stored))))
    assert from_backlog_message(received)[1] == aliases
