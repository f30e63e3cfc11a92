"""One line of the ledger: there and back, and what is not a record."""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.ledger import record


def line(**changes: object) -> bytes:
    whole = {"v": 1, "at_ms": 5, "operation": "send", "process": "p", **changes}
    return json.dumps({name: value for name, value in whole.items() if value != "gone"}).encode()


@given(st.text(), st.text(), st.integers(-(2**63), 2**63 - 1))
def test_any_text_and_number_comes_back_as_it_was(entity: str, error: str, number: int) -> None:
    fields = {"entity": entity, "error": error, "sequence_number": number, "side": None}
    encoded = record.encode("p", 7, "send", fields)
    assert encoded.endswith(b"}\n")
    assert encoded.count(b"\n") == 1
    assert encoded.isascii()
    assert record.decode(encoded) == {
        "v": 1,
        "at_ms": 7,
        "operation": "send",
        "process": "p",
        "entity": entity,
        "error": error,
        "sequence_number": number,
    }


def test_a_message_id_of_another_type_becomes_its_text() -> None:
    name = uuid.UUID(int=1)
    found = record.decode(record.encode("p", 7, "send", {"message_id": name, "latency_us": 1.5}))
    assert found is not None
    assert found["message_id"] == "00000000-0000-0000-0000-000000000001"
    assert found["latency_us"] == 1


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"{",
        b'{"v":1,"at_ms":5,"operation":"se',
        b"[1]",
        b"\xff\xfe",
        b"\0\0\0",
        b"[" * 100_000,
        line(v=2),
        line(v="gone"),
        line(at_ms="gone"),
        line(operation=None),
        line(process="gone"),
        line(at_ms="5"),
        line(size_bytes=True),
        line(entity=5),
    ],
)
def test_what_is_no_record_of_this_version_is_none(foreign: bytes) -> None:
    assert record.decode(foreign) is None


def test_a_field_that_a_later_minor_version_adds_is_no_obstacle() -> None:
    found = record.decode(line(colour="blue"))
    assert found is not None
    assert found["colour"] == "blue"


COMMON: dict[str, object] = {
    "cause": "application",
    "pair": "a+b",
    "outcome": "ok",
    "view": "client",
}


@given(
    st.text(max_size=20),
    st.lists(
        st.tuples(st.one_of(st.none(), st.text()), st.one_of(st.none(), st.integers(0, 10**9))),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 2**53),
)
def test_lines_made_from_a_form_are_those_made_one_by_one(
    entity: str, messages: list[tuple[str | None, int | None]], at_ms: int
) -> None:
    form = record.LineForm("send", entity=entity, **COMMON)
    lines = record.encode_messages(form.of("p"), at_ms, 77, messages).encode("ascii")
    assert [record.decode(line) for line in lines.splitlines(keepends=True)] == [
        record.decode(
            record.encode(
                "p",
                at_ms,
                "send",
                {
                    "entity": entity,
                    **COMMON,
                    "latency_us": 77,
                    "message_id": message_id,
                    "size_bytes": size_bytes,
                },
            )
        )
        for message_id, size_bytes in messages
    ]


def test_a_form_holds_only_what_all_its_lines_share() -> None:
    with pytest.raises(AssertionError, match="no such operation"):
        record.LineForm("sent")
    for name in ("message_id", "at_ms", "nonsense"):
        with pytest.raises(AssertionError, match="not to be shared"):
            record.LineForm("send", **{name: "x"})
