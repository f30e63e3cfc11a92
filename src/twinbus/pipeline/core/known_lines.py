"""A shortcut for the lines of our own writers: most differ only in time, id and sizes. Pure.

A line is taken apart without decoding it. What does not differ, its *words*, is looked up: they
were decoded once, as a part of another line. Every line that is not exactly of the form of
`ledger.record` is left to the decoder (`lines.record_in`), with which the shortcut always agrees.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from twinbus.ledger.record import VERSION
from twinbus.pipeline.core.messages import MEMO_MAX, RecordShape

_BEGINNING: Final = f'{{"v":{VERSION},"at_ms":'.encode()
_ID: Final = b',"message_id":"'
_LATENCY: Final = b',"latency_us":'
_NUMBER: Final = rb"(?:0|[1-9][0-9]{0,11})"
_TIME: Final = re.compile(rb"0|[1-9][0-9]{0,12}")
_LATENCY_TEXT: Final = re.compile(_NUMBER)
_END: Final = re.compile(
    # A text of printable ASCII without escapes, and numbers in any order.
    rb'([ !#-\[\]-~]*)"(?:,"(?:sequence_number|size_bytes|latency_us)":' + _NUMBER + rb")*\}"
)
_VARYING: Final = (b'"v"', b'"at_ms"', b'"message_id"', b'"size_bytes"', b'"sequence_number"')
_LEFT_OUT: Final = (*_VARYING, b'"latency_us"', b'"unrecorded"')
"""Names that words must not have: the last one of a name counts, and would be overlooked."""


class KnownLine(NamedTuple):
    """A record of a message."""

    shape: RecordShape
    at_ms: int
    message_id: str


class _Parts(NamedTuple):
    words: bytes
    at_ms: int
    message_id: str


class KnownLines:
    """Words of lines that were decoded, with their shapes."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, RecordShape] = {}

    def find(self, line: bytes) -> KnownLine | None:
        """Return the record in a line of known words, else None."""
        parts = _parts(line)
        if parts is None:
            return None
        shape = self._shapes.get(parts.words)
        return None if shape is None else KnownLine(shape, parts.at_ms, parts.message_id)

    def learn(self, line: bytes, record: Mapping[str, Any], shape: RecordShape) -> None:
        """Remember the words of a line, which has this record of a message of an entity."""
        parts = _parts(line)
        # An escape can hide a name.
        if parts is None or any(name in parts.words for name in (*_LEFT_OUT, b"\\")):
            return
        assert (parts.at_ms, parts.message_id) == (record["at_ms"], record["message_id"])
        if len(self._shapes) >= MEMO_MAX:
            self._shapes.clear()
        self._shapes[parts.words] = shape


def _parts(line: bytes) -> _Parts | None:
    """Take a line apart; None if it is not of the form of our writers."""
    head, mark, tail = line.partition(_ID)
    if not (mark and head.startswith(_BEGINNING)):
        return None
    end = _END.fullmatch(tail)
    time, _, words = head[len(_BEGINNING) :].partition(b",")
    if end is None or _TIME.fullmatch(time) is None:
        return None
    place = words.rfind(_LATENCY)
    if place >= 0 and _LATENCY_TEXT.fullmatch(words, place + len(_LATENCY)):
        words = words[:place]
    return _Parts(words, int(time), end[1].decode("ascii"))
