"""The messages of a batch are the same, found one after the other or in its split sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from twinbus.amqp.message import Sections, batch_parts, data_sections, split
from twinbus.amqp.types import DecodeError

SECTIONS = [
    b"\x00\x53\x70\x45",  # header
    b"\x00\x53\x71\xc1\x01\x00",  # delivery annotations
    b"\x00\x53\x72\xc1\x01\x00",  # message annotations
    b"\x00\x53\x73\x45",  # properties
    b"\x00\x53\x74\xc1\x01\x00",  # application properties
    b"\x00\x53\x75\xa0\x00",  # data
    b"\x00\x53\x75\xa0\x02ab",
    b"\x00\x53\x75\xb0\x00\x00\x00\x01c",
    b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x01d",
    b"\x00\x53\x76\x45",  # sequence
    b"\x00\x53\x77\x40",  # value
    b"\x00\x53\x78\xc1\x01\x00",  # footer
    b"\x00\x53\x75\xa0",  # cut off
    b"\x01",
]


def parts_or_error(find: Callable[[bytes], Iterator[bytes]], data: bytes) -> list[bytes] | None:
    try:
        return list(find(data))
    except DecodeError:
        return None


@given(st.lists(st.sampled_from(SECTIONS), max_size=6).map(b"".join))
def test_messages_found_one_by_one_are_those_of_the_split_batch(data: bytes) -> None:
    envelope = Sections()
    found = parts_or_error(lambda whole: batch_parts(whole, envelope), data)
    assert found == parts_or_error(lambda whole: data_sections(split(whole).body), data)
    if found is not None:
        assert envelope == replace(split(data), body=b"")
