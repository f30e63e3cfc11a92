"""What is said over a control socket, and what is answered to nonsense."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.control.protocol import (
    VERSION,
    ControlRefused,
    ControlRequest,
    HostCard,
    Verb,
    arguments_for,
    encode_refusal,
    encode_request,
    encode_result,
    parse_answer,
    parse_request,
    steering_verbs,
)
from twinbus.syphon.core.pacing import Rate
from twinbus.syphon.host import SyphonGroup

CARD = HostCard("pair", "contoso", 4711, "app.py", "2026-11-16T01:00:00+00:00")
VERBS = {"status": Verb(dict), "freeze": Verb(dict, takes=("path",))}


def test_a_request_and_its_answers_come_back_as_they_were_said() -> None:
    request = ControlRequest("freeze", {"path": "orders\nand more"})
    line = encode_request(request)
    assert line.count(b"\n") == 1
    assert parse_request(line) == request
    answer = parse_answer(encode_result(CARD, {"state": "healthy"}))
    assert (answer.host, answer.result, answer.error_kind) == (CARD, {"state": "healthy"}, None)
    refusal = parse_answer(encode_refusal(CARD, "busy", "later"))
    assert (refusal.error_kind, refusal.error_text, refusal.result) == ("busy", "later", None)


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        (b"status\n", "bad-request", "not a line of JSON"),
        (b"\xff\xfe\n", "bad-request", "not a line of JSON"),
        (b"[" * 100_000 + b"\n", "bad-request", "not a line of JSON"),
        (b"[]\n", "bad-request", "not an object"),
        (b'{"verb": "status"}\n', "bad-request", "version of the protocol"),
        (b'{"twinbus": true, "verb": "status"}\n', "bad-request", "version of the protocol"),
        (b'{"twinbus": 2, "verb": "status"}\n', "version", "the same release"),
        (b'{"twinbus": 1}\n', "bad-request", "a string in the field"),
        (b'{"twinbus": 1, "verb": "x", "arguments": []}\n', "bad-request", "an object"),
    ],
)
def test_a_line_that_asks_nothing_is_refused_with_a_reason(
    line: bytes, kind: str, said: str
) -> None:
    with pytest.raises(ControlRefused, match=said) as refused:
        parse_request(line)
    assert refused.value.kind == kind


@pytest.mark.parametrize(
    ("verb", "arguments", "said"),
    [
        ("drop", {}, "no verb 'drop'; it knows freeze, hello, status"),
        ("v" * 1_000, {}, "no verb 'vvv"),
        ("freeze", {}, "needs path"),
        ("freeze", {"path": 7}, "must be a text"),
        ("freeze", {"path": "  "}, "must be a text"),
        ("status", {"path": "orders"}, "takes no 'path'"),
    ],
)
def test_a_verb_gets_exactly_what_it_takes(verb: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ControlRefused, match=said) as refused:
        arguments_for(VERBS, ControlRequest(verb, arguments))
    assert len(str(refused.value)) < 200
    assert arguments_for(VERBS, ControlRequest("freeze", {"path": "orders"})) == {"path": "orders"}


@given(st.binary(max_size=200) | st.from_type(dict).map(lambda d: json.dumps(str(d)).encode()))
def test_no_bytes_get_past_the_parsers(line: bytes) -> None:
    for parse in (parse_request, parse_answer):
        with pytest.raises(ControlRefused):
            parse(line)


def test_an_answer_of_another_version_says_what_to_do() -> None:
    line = json.dumps({"twinbus": VERSION + 1, "ok": True}).encode()
    with pytest.raises(ControlRefused, match="the same release"):
        parse_answer(line)


def test_the_rate_of_a_syphon_is_set_and_taken_back() -> None:
    group = SyphonGroup(Rate())
    rate: Any = steering_verbs(group)["rate"].run
    assert rate("50") == {"rate": "50"}
    assert group.rate.governor.most_per_s == 50
    for wrong in ("fast", "-1", "nan", ""):
        with pytest.raises(ControlRefused, match="a rate is a number of messages a second"):
            rate(wrong)
    assert group.rate.governor.most_per_s == 50
    rate("adaptive")
    assert group.rate.governor.most_per_s is None
