"""The shortcut for lines of known words says what the decoder says, or nothing."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twinbus.ledger.record import encode
from twinbus.pipeline.core.known_lines import KnownLines
from twinbus.pipeline.core.lines import record_in
from twinbus.pipeline.core.messages import RecordShapes

TEXTS = st.one_of(
    st.sampled_from(["orders", "a,b", 'x"y', "ä", "\\", ',"message_id":"q"', "", "a\nb"]),
    st.text(max_size=8),
)
FIELDS: dict[str, Any] = {
    "cause": st.sampled_from(["application", "syphon"]),
    "pair": st.sampled_from(["contoso+east", "contoso"]),
    "entity": TEXTS,
    "error": TEXTS,
    "outcome": st.sampled_from(["ok", "unknown"]),
    "latency_us": st.sampled_from([0, 7, 1_500_000]),
    "message_id": TEXTS,
    "sequence_number": st.sampled_from([1, 1 << 40]),
    "size_bytes": st.sampled_from([0, 100, 1 << 40, 1 << 41]),
    "unrecorded": st.sampled_from([0, 3]),
    "view": st.sampled_from(["broker", "client"]),
}
LINES = st.builds(
    encode,
    st.sampled_from(["p", 'q"']),
    st.sampled_from([0, 5, 1_760_000_000_000, 10**13, 10**15]),
    st.sampled_from(["send", "divert", "receive", "writer"]),
    st.fixed_dictionaries({}, optional=FIELDS),
).map(bytes.strip)
PIECES = st.sampled_from(
    [
        b"",
        b"}",
        b"{",
        b'"',
        b"0",
        b",",
        b" ",
        b"\\u005f",
        b'"at_ms":5,',
        b'"message_id":"z",',
        b"\xff",
    ]
)


@st.composite
def cut_lines(draw: st.DrawFn) -> bytes:
    """A line of ours in which a few bytes were replaced."""
    line = draw(LINES)
    at, length = draw(st.integers(0, len(line))), draw(st.integers(0, 3))
    return line[:at] + draw(PIECES) + line[at + length :]


@given(lines=st.lists(st.one_of(LINES, cut_lines()), max_size=12), at_ms=st.integers(0, 10**16))
def test_a_known_line_is_the_record_that_the_decoder_finds(lines: list[bytes], at_ms: int) -> None:
    known, shapes = KnownLines(), RecordShapes()
    moved = [line.replace(b'"at_ms":5', b'"at_ms":%d' % at_ms) for line in lines]
    for line in [*lines, *moved, *lines]:
        record, found = record_in(line), known.find(line)
        if found is not None:
            assert record is not None
            assert record.get("entity") is not None
            assert record["operation"] != "writer"
            assert not record.get("unrecorded")
            told = (shapes.of(record), record["at_ms"], record["message_id"])
            assert found == told
        elif record is not None and record["operation"] != "writer":
            named = record.get("message_id") is not None and record.get("entity") is not None
            if named:
                known.learn(line, record, shapes.of(record))


def test_the_lines_of_our_writers_are_known_after_the_first_of_their_words() -> None:
    known, shapes = KnownLines(), RecordShapes()
    fields = {"cause": "application", "pair": "a+b", "entity": "orders", "outcome": "ok"}

    def line(number: int) -> bytes:
        sizes = {"latency_us": number, "message_id": f"id {number}", "size_bytes": 7 * number}
        return encode("p", 1_760_000_000_000 + number, "send", {**fields, **sizes}).strip()

    first = json.loads(line(1))
    known.learn(line(1), first, shapes.of(first))
    found = known.find(line(2))
    assert found == (shapes.of(first), 1_760_000_000_002, "id 2")
