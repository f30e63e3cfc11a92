"""SASL of a server: what it offers, and whom it lets in."""

from __future__ import annotations

import pytest

from twinbus.amqp.connection import AMQP_HEADER, SASL_HEADER, Connection, ConnectionPhase
from twinbus.amqp.events import Closed
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.performatives import Close, SaslInit
from twinbus.amqp.sasl import offered, why_refused
from twinbus.amqp.types import Symbol


def check(name: str, key: str) -> str | None:
    return None if (name, key) == ("rule", "k\u00e9y") else "wrong"


def plain(response: bytes | None, mechanism: str = "PLAIN") -> SaslInit:
    return SaslInit(mechanism=Symbol(mechanism), initial_response=response)


RIGHT = "\0rule\0k\u00e9y".encode()


def test_plain_is_offered_only_where_a_key_can_be_checked_and_external_never() -> None:
    assert offered(None) == ("MSSBCBS", "ANONYMOUS")
    assert offered(check) == ("MSSBCBS", "PLAIN", "ANONYMOUS")


@pytest.mark.parametrize(
    ("init", "reason"),
    [
        (plain(RIGHT), None),
        (plain(b"rule" + RIGHT), None),
        (plain(None, "ANONYMOUS"), None),
        (plain(None, "MSSBCBS"), None),
        (plain(None, "EXTERNAL"), "not offered"),
        (plain(b"\0rule\0other"), "wrong"),
        (plain(b"root" + RIGHT), "cannot act as"),
        (plain(None), "the name, then the name and the key"),
        (plain(b"\0rule"), "the name, then the name and the key"),
        (plain(RIGHT + b"\0more"), "the name, then the name and the key"),
        (plain(b"\0rule\0\xff"), "the name, then the name and the key"),
    ],
)
def test_a_client_is_let_in_by_a_right_key_only(init: SaslInit, reason: str | None) -> None:
    refusal = why_refused(init, check)
    assert refusal is None if reason is None else reason in str(refusal)


def test_a_key_is_not_taken_where_plain_is_not_offered() -> None:
    assert "not offered" in str(why_refused(plain(RIGHT), None))


def test_a_wrong_key_ends_the_connection_after_its_outcome() -> None:
    server = Connection("b", sasl=True, server=True)
    server.login = check
    init = encode_frame(0, plain(b"\0rule\0no"), frame_type=1)
    events = [each for run in server.receive(SASL_HEADER + init, 1) for each in run]
    assert [type(each) for each in events] == [Closed]
    assert server.phase is ConnectionPhase.CLOSED
    assert server.take_output(1).endswith(bytes.fromhex("005344c00402500140"))
    assert not [*server.receive(AMQP_HEADER, 1)]


@pytest.mark.parametrize(
    "before", [b"", SASL_HEADER, SASL_HEADER + encode_frame(0, plain(RIGHT), frame_type=1)]
)
def test_a_client_that_leaves_before_it_has_opened_breaks_no_rule(before: bytes) -> None:
    server = Connection("b", sasl=True, server=True)
    server.login = check
    assert not [each for run in server.receive(before, 1) for each in run]
    events = [each for run in server.receive(encode_frame(0, Close()), 1) for each in run]
    assert events == [Closed(None)]
    assert server.phase is ConnectionPhase.CLOSED
