"""What a syphon unpacks from a backlog queue that anybody may send to: aliases and paths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.part import Part
from tests.fuzz.values import ANY_VALUE, MOMENT, TIMESPAN, integers
from tests.property.test_unpacking import NOW_MS, seen, usual
from twinbus.amqp.message import Header, Properties, encode_message
from twinbus.amqp.types import Described, Symbol, Timestamp
from twinbus.broker.messages.incoming import parse
from twinbus.client.peeked_message import read_peeked
from twinbus.transfer.unpacking import NOT_RESTORED, Unpacker, unpack

SEGMENTS = (
    *("orders", "Orders", "a.b", "~", "_", "", ".", "..", "x" * 130),
    *("$management", "$cbs", "$Management", "$deadletterqueue", "$transfer", "%24management"),
    *("subscriptions", "Subscriptions", "\u017fubscriptions", "rules", "a b", "a\x00", "é"),
    *("sb:", "amqps:", "[x", "?", "#", "\\"),
)
paths = st.one_of(
    st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=4).map("/".join),
    st.sampled_from(("orders", "orders", "sb://other/orders", "orders\n", "orders/$management")),
    ANY_VALUE,
)
_numbers = st.one_of(integers, integers.map(lambda n: Described(TIMESPAN, n)))
_moments = st.one_of(integers, integers.map(lambda n: Described(MOMENT, n)), ANY_VALUE)
aliases = st.fixed_dictionaries(
    {"x-ms-path": paths},
    optional={
        "x-ms-sessionid": st.one_of(st.sampled_from(("s", "", "s" * 128, "s" * 129)), ANY_VALUE),
        "x-ms-timetolive": st.one_of(_numbers, ANY_VALUE),
        "x-ms-scheduledenqueuetimeutc": _moments,
        "x-twinbus-messageid": st.one_of(st.sampled_from(("i", "i" * 129)), ANY_VALUE),
        "x-twinbus-partitionkey": ANY_VALUE,
        "mine": ANY_VALUE,
    },
)
_PLAIN = re.compile(r"[A-Za-z0-9._~-]+(?:/[A-Za-z0-9._~-]+)*", re.ASCII)
PATH_LENGTH_MAX = 260


@dataclass(frozen=True)
class Backlog:
    aliases: list[dict[str, Any]]
    enqueued_ms: int
    remaining_ttl: bool


backlogs = st.builds(
    Backlog, st.lists(aliases, min_size=1, max_size=4), integers.map(int), st.booleans()
)


def check(backlog: Backlog) -> None:
    """Each message has a destination that is an entity, or a fault; neighbours arrive."""
    unpacker = Unpacker(remaining_ttl=backlog.remaining_ttl)
    for each in backlog.aliases:
        wire = _delivery(each, backlog.enqueued_ms)
        message = unpacker.unpack(wire, b"token", NOW_MS)
        assert seen(message) == seen(
            unpack(wire, b"token", NOW_MS, remaining_ttl=backlog.remaining_ttl)
        )
        read_peeked("queue", wire).summary()
        if message.fault is None:
            _check_destination(message.path)
            # What the destination gets, it takes: nothing in it breaks a connection.
            assert parse(message.wire, str).payload
        else:
            assert message.fault[0] != NOT_RESTORED, message.fault
            assert not message.wire
        assert unpacker.unpack(usual(b"orders"), b"token", NOW_MS).path == "orders"


def _check_destination(path: str) -> None:
    """A path names a queue or a topic of the primary, and nothing else that has an address."""
    assert _PLAIN.fullmatch(path), path
    assert len(path) <= PATH_LENGTH_MAX
    first, *later = path.lower().split("/")
    assert not {"", ".", ".."} & {first, *later}, path
    assert "subscriptions" not in later, path


def _delivery(properties: dict[str, Any], enqueued_ms: int) -> bytes:
    clipped = Timestamp(max(-(2**63), min(enqueued_ms, 2**63 - 1)))
    return encode_message(
        header=Header(durable=True),
        message_annotations={Symbol("x-opt-enqueued-time"): clipped},
        properties=Properties(message_id="m"),
        application_properties=properties,
        data=b"b",
    )


UNPACKING = Part("unpacking", backlogs, check, short=50, round=400)
