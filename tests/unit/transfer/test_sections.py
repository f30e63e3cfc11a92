"""Raw sections into the backlog and back: names, types, refusals, and what stays as it was."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from twinbus.amqp import message as wire
from twinbus.amqp.message import Header, Properties, Sections, decode_map, encode_message, split
from twinbus.amqp.types import DecodeError, Described, Symbol, Timestamp, ULong
from twinbus.errors import (
    AliasTypeError,
    AliasValueError,
    InvalidDestinationError,
    MissingDestinationError,
    ReservedPropertyError,
    TransferError,
)
from twinbus.transfer.aliases import Aliases
from twinbus.transfer.sections import (
    aliases_of,
    from_backlog_sections,
    original_id,
    to_backlog_sections,
    with_own_id,
    without_delivery_marks,
)

NOW_MS = 1_800_000_000_000
WHEN = datetime(2030, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
WHEN_MS = int(WHEN.timestamp() * 1000)
TIMESPAN = Symbol("com.microsoft:timespan")
DATETIME_OFFSET = Symbol("com.microsoft:datetime-offset")
FIRST_MS = (
    round((datetime(1, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1000
)
LAST_MS = 253_402_300_799_999
"""The first and the last millisecond of the years 1 to 9999."""
TTL_ALIAS = Described(TIMESPAN, 90_000 * 10_000)

NO_ENTITIES = [
    "$cbs",
    "$management",
    "orders/$management",
    "orders/$DeadLetterQueue",
    "orders/$deadletterqueue/$management",
    "orders/$Transfer/$DeadLetterQueue",
    "contoso/x-servicebus-transfer/0/$management",
    "contoso/x-twinbus-lease/$management",
    "events/Subscriptions/all",
    "events/SUBSCRIPTIONS",
    "events/subscriptions/all/$management",
    "amqps://contoso.servicebus.windows.net/orders",
    "sb://elsewhere/orders",
    "//elsewhere/orders",
    "/orders",
    "orders/",
    "/",
    "orders//new",
    "orders/../new",
    "orders/.",
    "orders/..",
    ".",
    "..",
    "orders?api=1",
    "orders#new",
    "orders/%24management",
    "orders;new",
    "orders\\new",
    "orders@new",
    "orders:new",
    " orders",
    "orders ",
    "or ders",
    "orders\n",
    "orders\r\n",
    "orders\x00",
    "orders\x7f",
    "orders\u200b",
    "\uff04management",
    "orders/\uff04management",
    "\u212aings",
    "order\u017f",
    "events/sub\u017fcriptions/all",
    "bestellung\u00e4",
    "q" * 261,
    "q" * 100_000,
]
"""Paths that no queue or topic has."""


def raw(**parts: Any) -> Sections:
    return split(encode_message(**{"data": b"body", **parts}))


FULL = raw(
    header=Header(durable=True, priority=4, ttl=90_000),
    message_annotations={
        "x-opt-scheduled-enqueue-time": Timestamp(WHEN_MS),
        "x-opt-partition-key": "session 1",
        "x-opt-mine": 5,
    },
    properties=Properties(
        message_id="id 1",
        absolute_expiry_time=NOW_MS + 90_000,
        creation_time=NOW_MS,
        group_id="session 1",
        reply_to_group_id="answers",
    ),
    application_properties={"colour": "red"},
)


def test_every_alias_has_the_documented_name_and_type() -> None:
    backlog = to_backlog_sections(FULL, "orders", now_ms=0)
    properties = decode_map(backlog.application_properties)
    assert properties == {
        "colour": "red",
        "x-ms-sessionid": "session 1",
        "x-ms-timetolive": TTL_ALIAS,
        "x-ms-scheduledenqueuetimeutc": WHEN_MS,
        "x-twinbus-partitionkey": True,
        "x-ms-path": "orders",
    }
    assert type(properties["x-ms-sessionid"]) is str
    assert type(properties["x-ms-path"]) is str
    assert type(properties["x-ms-scheduledenqueuetimeutc"]) is Timestamp
    assert type(properties["x-ms-timetolive"].descriptor) is Symbol
    assert type(properties["x-ms-timetolive"].value) is int


def test_what_has_an_alias_is_cleared_and_nothing_else() -> None:
    backlog = to_backlog_sections(FULL, "orders", now_ms=0)
    assert wire.decode_header(backlog.header) == Header(durable=True, priority=4)
    assert wire.decode_properties(backlog.properties) == Properties(
        message_id="id 1", reply_to_group_id="answers"
    )
    assert decode_map(backlog.message_annotations) == {"x-opt-mine": 5}
    assert backlog.body == FULL.body


def test_back_again_it_is_the_message_it_was_without_the_derived_times() -> None:
    back, aliases = from_backlog_sections(
        to_backlog_sections(FULL, "orders", now_ms=0), now_ms=NOW_MS
    )
    assert aliases == Aliases(
        path="orders",
        session_id="session 1",
        time_to_live_ms=90_000,
        scheduled_ms=WHEN_MS,
        partition_key_is_session=True,
    )
    assert wire.decode_header(back.header) == wire.decode_header(FULL.header)
    assert wire.decode_properties(back.properties) == Properties(
        message_id="id 1", group_id="session 1", reply_to_group_id="answers"
    )
    annotations = decode_map(back.message_annotations)
    assert annotations == decode_map(FULL.message_annotations)
    assert type(annotations["x-opt-scheduled-enqueue-time"]) is Timestamp
    assert back.application_properties == FULL.application_properties


def test_a_message_without_any_of_it_only_gains_its_path() -> None:
    plain = raw()
    backlog = to_backlog_sections(plain, "orders", now_ms=0)
    assert decode_map(backlog.application_properties) == {"x-ms-path": "orders"}
    assert replace(backlog, application_properties=b"") == plain
    assert from_backlog_sections(backlog, now_ms=NOW_MS)[0] == plain


def test_a_partition_key_of_its_own_passes_through() -> None:
    for key in ("other", Symbol("session 1")):
        message = raw(
            message_annotations={"x-opt-partition-key": key},
            properties=Properties(group_id="session 1"),
        )
        backlog = to_backlog_sections(message, "orders", now_ms=0)
        assert backlog.message_annotations == message.message_annotations


def test_an_expiry_alone_in_the_properties_is_a_time_to_live_too() -> None:
    message = raw(properties=Properties(absolute_expiry_time=NOW_MS + 500, creation_time=NOW_MS))
    backlog = to_backlog_sections(message, "orders", now_ms=0)
    assert aliases_of(backlog).time_to_live_ms == 500
    assert wire.decode_properties(backlog.properties) == Properties()
    back, _ = from_backlog_sections(backlog, now_ms=NOW_MS)
    assert wire.decode_header(back.header).ttl == 500


def test_a_time_to_live_past_49_days_comes_back_as_the_two_times() -> None:
    ninety_days = 90 * 86_400_000
    message = raw(
        header=Header(ttl=0xFFFF_FFFF),
        properties=Properties(absolute_expiry_time=1_000 + ninety_days, creation_time=1_000),
    )
    backlog = to_backlog_sections(message, "orders", now_ms=0)
    assert aliases_of(backlog).time_to_live_ms == ninety_days
    back, _ = from_backlog_sections(backlog, now_ms=NOW_MS)
    assert wire.decode_header(back.header).ttl == 0xFFFF_FFFF
    properties = wire.decode_properties(back.properties)
    assert properties.creation_time == NOW_MS
    assert properties.absolute_expiry_time == NOW_MS + ninety_days


@pytest.mark.parametrize("message_id", ["id 1", "", ULong(7), UUID(int=1), b"id", "\u00e9" * 128])
def test_an_id_of_its_own_replaces_the_messages_and_the_message_gets_its_own_back(
    message_id: str | ULong | UUID | bytes,
) -> None:
    message = raw(properties=Properties(message_id=message_id, subject="s"))
    backlog = to_backlog_sections(message, "orders", own_id="0" * 32, now_ms=0)
    assert wire.decode_properties(backlog.properties).message_id == "0" * 32
    alias = decode_map(backlog.application_properties)["x-twinbus-messageid"]
    assert (type(alias), alias) == (type(message_id), message_id)
    back, aliases = from_backlog_sections(backlog, now_ms=NOW_MS)
    assert aliases.message_id == message_id
    restored = wire.decode_properties(back.properties).message_id
    assert (type(restored), restored) == (type(message_id), message_id)


@pytest.mark.parametrize("message_id", [None, "m" * 129])
def test_no_id_and_one_that_no_service_takes_stay_as_they_are(message_id: str | None) -> None:
    message = raw(properties=Properties(message_id=message_id, subject="s"))
    backlog = to_backlog_sections(message, "orders", own_id="0" * 32, now_ms=0)
    assert backlog.properties == message.properties
    assert decode_map(backlog.application_properties) == {"x-ms-path": "orders"}


def test_another_id_of_its_own_keeps_the_original_one() -> None:
    message = raw(properties=Properties(message_id="id 1"))
    for backlog in (
        to_backlog_sections(message, "orders", now_ms=0),
        to_backlog_sections(message, "orders", own_id="0" * 32, now_ms=0),
    ):
        again = with_own_id(backlog, "1" * 32)
        assert wire.decode_properties(again.properties).message_id == "1" * 32
        assert original_id(again) == "id 1"
        assert from_backlog_sections(again, now_ms=NOW_MS)[0] == message
    nameless = to_backlog_sections(raw(), "orders", now_ms=0)
    assert with_own_id(nameless, "1" * 32) == nameless


def test_other_aliases_can_be_restored_in_place_of_the_messages_own() -> None:
    backlog = to_backlog_sections(FULL, "orders", now_ms=0)
    shorter = replace(aliases_of(backlog), time_to_live_ms=1)
    back, _ = from_backlog_sections(backlog, now_ms=NOW_MS, aliases=shorter)
    assert wire.decode_header(back.header).ttl == 1


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({"x-ms-timetolive": 90_000 * 10_000}, {"time_to_live_ms": 90_000}),
        ({"x-ms-timetolive": TTL_ALIAS}, {"time_to_live_ms": 90_000}),
        ({"x-ms-timetolive": 1}, {"time_to_live_ms": 1}),
        ({"x-ms-timetolive": 2**63 - 1}, {"time_to_live_ms": None}),
        ({"x-ms-scheduledenqueuetimeutc": WHEN_MS}, {"scheduled_ms": WHEN_MS}),
        ({"x-ms-scheduledenqueuetimeutc": Timestamp(WHEN_MS)}, {"scheduled_ms": WHEN_MS}),
        (
            {
                "x-ms-scheduledenqueuetimeutc": Described(
                    DATETIME_OFFSET, 621_355_968_000_000_000 + WHEN_MS * 10_000
                )
            },
            {"scheduled_ms": WHEN_MS},
        ),
        ({"x-ms-sessionid": "s"}, {"session_id": "s"}),
        ({"x-ms-sessionid": None, "x-ms-timetolive": None}, {}),
        # The largest values.
        ({"x-ms-sessionid": "s" * 128}, {"session_id": "s" * 128}),
        ({"x-ms-timetolive": Described(TIMESPAN, 2**63 - 1)}, {}),
        ({"x-ms-timetolive": 2**62}, {"time_to_live_ms": -(-(2**62) // 10_000)}),
        ({"x-ms-scheduledenqueuetimeutc": Timestamp(LAST_MS)}, {"scheduled_ms": LAST_MS}),
        ({"x-ms-scheduledenqueuetimeutc": Timestamp(FIRST_MS)}, {"scheduled_ms": FIRST_MS}),
        (
            {"x-ms-scheduledenqueuetimeutc": Described(DATETIME_OFFSET, 0)},
            {"scheduled_ms": FIRST_MS},
        ),
    ],
)
def test_what_the_net_library_left_behind_is_read_in_plain_types_too(
    stored: dict[str, object], expected: dict[str, Any]
) -> None:
    message = raw(application_properties={"x-ms-path": "orders", **stored})
    restored, aliases = from_backlog_sections(message, now_ms=NOW_MS)
    assert aliases == aliases_of(message) == replace(Aliases(path="orders"), **expected)
    split(wire.join(restored))


@pytest.mark.parametrize("path", [None, ""])
def test_a_message_without_a_path_says_so(path: object) -> None:
    properties = {} if path is None else {"x-ms-path": path}
    with pytest.raises(MissingDestinationError, match="x-ms-path") as refused:
        from_backlog_sections(raw(application_properties=properties), now_ms=NOW_MS)
    assert refused.value.reason == "MissingDestination"


@pytest.mark.parametrize("path", NO_ENTITIES)
def test_a_path_that_names_no_entity_is_refused(path: str) -> None:
    message = raw(application_properties={"x-ms-path": path})
    with pytest.raises(InvalidDestinationError, match="is not the path of a queue") as refused:
        from_backlog_sections(message, now_ms=NOW_MS)
    assert refused.value.reason == "InvalidDestination"
    assert len(str(refused.value)) < 600, "a description that the backlog queue keeps whole"


@pytest.mark.parametrize(
    "path",
    ["o", "_", "Orders", "a.b-c_d~e/F/9", "-a", "a.", "A--B/C--", "q" * 260, "subscriptions"],
)
def test_a_path_that_can_name_an_entity_is_taken(path: str) -> None:
    assert aliases_of(raw(application_properties={"x-ms-path": path})).path == path


WRONG_TYPES: list[tuple[str, object]] = [
    ("x-ms-path", 5),
    ("x-ms-sessionid", b"bytes"),
    ("x-ms-timetolive", "00:01:30"),
    ("x-ms-timetolive", True),
    ("x-ms-timetolive", Described(Symbol("com.example:other"), 5)),
    ("x-ms-scheduledenqueuetimeutc", "tomorrow"),
    ("x-ms-scheduledenqueuetimeutc", True),
    ("x-ms-timetolive", float("nan")),
    ("x-ms-timetolive", Described(TIMESPAN, Described(TIMESPAN, 5))),
    ("x-ms-scheduledenqueuetimeutc", 1.5),
    ("x-ms-scheduledenqueuetimeutc", float("nan")),
    ("x-ms-scheduledenqueuetimeutc", float("inf")),
    ("x-ms-scheduledenqueuetimeutc", Described(DATETIME_OFFSET, True)),
    ("x-ms-scheduledenqueuetimeutc", [5]),
    ("x-twinbus-messageid", True),
    ("x-twinbus-messageid", 1.5),
    ("x-twinbus-messageid", Timestamp(5)),
    ("x-twinbus-messageid", [5]),
    ("x-twinbus-messageid", Described(TIMESPAN, "id")),
]
WRONG_VALUES: list[tuple[str, object]] = [
    ("x-ms-sessionid", "s" * 129),
    ("x-twinbus-messageid", "m" * 129),
    ("x-twinbus-messageid", b"m" * 129),
    ("x-twinbus-messageid", -1),
    ("x-ms-timetolive", -1),
    ("x-ms-timetolive", ULong(2**63)),
    ("x-ms-timetolive", ULong(2**64 - 1)),
    ("x-ms-timetolive", Described(TIMESPAN, -(2**63))),
    ("x-ms-timetolive", Described(TIMESPAN, ULong(2**64 - 1))),
    ("x-ms-scheduledenqueuetimeutc", ULong(2**64 - 1)),
    ("x-ms-scheduledenqueuetimeutc", Timestamp(2**63 - 1)),
    ("x-ms-scheduledenqueuetimeutc", Timestamp(LAST_MS + 1)),
    ("x-ms-scheduledenqueuetimeutc", Timestamp(FIRST_MS - 1)),
    ("x-ms-scheduledenqueuetimeutc", -(2**63)),
    ("x-ms-scheduledenqueuetimeutc", Described(DATETIME_OFFSET, ULong(2**64 - 1))),
    ("x-ms-scheduledenqueuetimeutc", Described(DATETIME_OFFSET, -1)),
]


@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        *((AliasTypeError, *wrong) for wrong in WRONG_TYPES),
        *((AliasValueError, *wrong) for wrong in WRONG_VALUES),
    ],
)
def test_an_alias_that_no_message_carries_is_named(
    error: type[TransferError], name: str, value: object
) -> None:
    message = raw(application_properties={"x-ms-path": "orders", name: value})
    with pytest.raises(error, match=name) as refused:
        from_backlog_sections(message, now_ms=NOW_MS)
    assert error is AliasTypeError or refused.value.reason == "AliasValueInvalid"


def test_the_marks_of_a_delivery_do_not_travel_on() -> None:
    sent = raw(header=Header(durable=True, ttl=5), message_annotations={"x-opt-mine": 1})
    delivered = raw(
        header=Header(durable=True, ttl=5, first_acquirer=True, delivery_count=3),
        delivery_annotations={"x-opt-lock-token": "t"},
        message_annotations={
            "x-opt-mine": 1,
            "x-opt-sequence-number": 7,
            "x-opt-enqueued-time": Timestamp(5),
            "x-opt-locked-until": Timestamp(6),
        },
    )
    clean = without_delivery_marks(delivered)
    assert wire.decode_header(clean.header) == wire.decode_header(sent.header)
    assert clean.delivery_annotations == b""
    assert clean.message_annotations == sent.message_annotations
    assert clean.body == delivered.body
    assert without_delivery_marks(raw()) == raw()


def test_wide_encodings_are_read_as_well_as_compact_ones() -> None:
    """What another client may write: 32-bit sizes everywhere, a descriptor by its name."""
    key, value = b"\xb1\x00\x00\x00\x09x-ms-path", b"\xb1\x00\x00\x00\x06orders"
    items = b"\x00\x00\x00\x02" + key + value
    descriptor = b"\x00\xa3\x1famqp:application-properties:map"
    wide = Sections(
        application_properties=descriptor + b"\xd1" + len(items).to_bytes(4, "big") + items
    )
    assert aliases_of(wide) == Aliases(path="orders")
    with pytest.raises(ReservedPropertyError, match="x-ms-path"):
        to_backlog_sections(wide, "orders", now_ms=0)
    assert from_backlog_sections(wide, now_ms=NOW_MS)[0] == Sections()
    fields = b"\x00\x00\x00\x03\x40\x40\x70\x00\x01\x5f\x90"
    header = b"\x00\x80" + bytes(7) + b"\x70\xd0" + len(fields).to_bytes(4, "big") + fields
    assert (
        aliases_of(to_backlog_sections(Sections(header=header), "q", now_ms=0)).time_to_live_ms
        == 90_000
    )


@pytest.mark.parametrize(
    "section",
    [
        b"\x00\x53\x74\xc1\x01\x01",
        b"\x00\x53\x74\xc1\x02\x02\x40",
        b"\x00\x53\x74\xc1\x03\x02\xa1\x09",
        b"\x00\x53\x74\xc1\x00",
        b"\x00\x53\x74\xc1\x05\x02\x40\x40\x40\x40",
        b"\x00\x53\x74\xd1\x00\x00\x00\x01\x02",
        b"\x00\x53\x74\xc1\x01\x00\xff",
    ],
    ids=["odd", "cut", "cut in a key", "no count", "too long", "no wide count", "a byte behind"],
)
def test_a_broken_section_is_refused_and_nothing_worse(section: bytes) -> None:
    with pytest.raises(DecodeError):
        aliases_of(Sections(application_properties=section))
