"""Texts that name a message, and texts that only look so."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.pipeline.core.mentions import CUT_LENGTH_MIN, Mentions, renamed_line, written_id
from twinbus.pipeline.core.rules import AT_ONCE, RAN_OUT

ID = "0b1c-77"


@pytest.mark.parametrize(
    ("message_id", "text", "before"),
    [
        (ID, f"message {ID} was refused", "message"),
        (ID, f"message {ID}: it is of jane", "message"),
        (ID, f"id={ID}, of jane", "id="),
        (ID, f"MessageId:{ID}.", "MessageId:"),
        (ID, f'("{ID}")', '("'),
        (ID, f"{ID}", ""),
        (ID, f"first line\n{ID}", "first line\n"),
        (ID, f"'first line\\n{ID}'", "'first line\\n"),
        ("4", "/orders/messages/4/lock", "/orders/messages/"),
        # As other programs write it: escaped, as Python shows it, in a URL.
        ('a"é', written_id('no a"é here'), "no"),
        ("it's\n", f"no {chr(34)}it's\\n{chr(34)}", 'no "'),
        ("a b/c", "GET /messages/a%20b%2Fc", "GET /messages/"),
        # Signs have no meaning.
        (".*", "any of .* here", "any of"),
        # A text that was cut, by its length or with a mark.
        (ID, "message 0b1c…", "message"),
        (ID, "x" * (CUT_LENGTH_MIN - 5) + " 0b1c", "x" * (CUT_LENGTH_MIN - 5)),
        # What reports understand stays.
        (ID, f"{RAN_OUT}: {ID}", f"{RAN_OUT}:"),
        ("a", f"{AT_ONCE}: no answer", ""),
    ],
)
def test_a_text_is_cut_where_it_names_the_message(message_id: str, text: str, before: str) -> None:
    assert Mentions(message_id).cut(text) == before
    assert Mentions(message_id).are_in(text)


@pytest.mark.parametrize(
    ("message_id", "text"),
    [
        ("1", "no success for 10 s, 11 tries, queue1, v1, 1a, _1_ or 1_"),
        ("10", "at 2025-10-09, 127.0.10.1 and order-10"),
        (ID, f"message {ID}8, a{ID} or {ID}-2"),
        ("order", "no orders for order-1, my.order, reorder"),
        # A short one, and one that was not cut.
        ("0b1", "message 0b…"),
        ("message-7", "there is no such message"),
        ("a", AT_ONCE),
        (RAN_OUT, RAN_OUT),
    ],
)
def test_a_text_about_something_else_stays(message_id: str, text: str) -> None:
    assert Mentions(message_id).cut(text) == text


@given(st.text(min_size=1, max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_nothing_of_an_id_between_other_words_is_left(
    message_id: str, before: str, after: str
) -> None:
    mentions = Mentions(message_id)
    for text in (f"{before} {message_id} {after}", json.dumps([before, message_id, after])):
        cut = mentions.cut(text)
        assert text.startswith(cut)
        assert len(cut) < len(text)
        # Cut again, it stays: an erasure ends.
        assert mentions.cut(cut) == cut


def test_damaged_lines_lose_an_id_of_some_length_everywhere() -> None:
    new_id = "erased:0"
    damaged = '{"v":1,"operatio0b1c-77a-8",'
    assert Mentions("0b1c-77a").renamed(damaged, new_id) == f'{{"v":1,"operatio{new_id}-8",'
    assert Mentions("0b1c-77").renamed(damaged, new_id) == damaged
    assert Mentions("7").renamed('{"v":7,"message_id":"7","erro', new_id).count(new_id) == 2
    # A line that ends inside the id; a part of less than four characters can be anything.
    assert Mentions(ID).renamed('{"message_id":"0b1c-', new_id) == f'{{"message_id":"{new_id}'
    assert not Mentions(ID).are_in('{"message_id":"0b1')


NEW = "erased:0"


def line(**fields: object) -> bytes:
    return json.dumps({"v": 1, "at_ms": 1, "operation": "send", "process": "p", **fields}).encode()


@pytest.mark.parametrize(
    ("fields", "after"),
    [
        # Its own record keeps what is counted.
        (
            {"message_id": ID, "client": "c", "trace_id": "t", "sequence_number": 1, "error": "no"},
            {"message_id": NEW},
        ),
        ({"message_id": ID, "error": f"{RAN_OUT} x"}, {"message_id": NEW, "error": RAN_OUT}),
        (
            {"message_id": ID, "error": "MaxDeliveryCountExceeded: x"},
            {"message_id": NEW, "error": "MaxDeliveryCountExceeded"},
        ),
        # Others keep what does not name it.
        ({"message_id": "b", "error": f"after {ID}"}, {"message_id": "b", "error": "after"}),
        ({"client": "c", "trace_id": ID}, {"client": "c"}),
        ({"entity": ID, "note": {"of": [ID]}, "other": 1}, {"entity": ID, "other": 1}),
        # Lines of later versions too.
        ({"v": 9, "message_id": "b", "error": ID}, {"v": 9, "message_id": "b"}),
    ],
)
def test_a_line_of_the_ledger_loses_the_id(
    fields: dict[str, object], after: dict[str, object]
) -> None:
    renamed = renamed_line(line(**fields), Mentions(ID), NEW)
    assert json.loads(renamed) == json.loads(line(**after))


@pytest.mark.parametrize(
    "same",
    [
        line(message_id="b", error="0b1c-778 was refused"),
        line(operation="writer", state="closed", client=ID, error=ID),
        b"",
        b"[" * 100_000,
    ],
)
def test_a_line_that_does_not_name_the_message_stays_byte_by_byte(same: bytes) -> None:
    assert renamed_line(same, Mentions(ID), NEW) == same


def test_what_is_no_record_stays_none() -> None:
    assert renamed_line(b'["0b1c-77"]', Mentions(ID), NEW) == b'["erased:0"]'
    assert renamed_line(b"\xff 0b1c-77", Mentions(ID), NEW) == b"\xff erased:0"
    assert renamed_line(b"0b1c-77 " + b"[" * 100_000, Mentions(ID), NEW)[:9] == b"erased:0 "
