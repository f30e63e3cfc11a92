"""Bodies of requests that would take long to parse are refused before."""

from __future__ import annotations

import pytest

from twinbus.broker.admin.atom import MARKUP_MAX, parse_entry
from twinbus.broker.refusals import ArgumentInvalid

ENTRY = b"<entry xmlns='http://www.w3.org/2005/Atom'><content><Q%s>%s</Q></content></entry>"


def attributes(count: int) -> bytes:
    return b"".join(b" a%d=''" % each for each in range(count))


def test_a_body_of_thousands_of_tags_is_refused_before_it_is_parsed() -> None:
    for body in (ENTRY % (b"", b"<a/>" * MARKUP_MAX), ENTRY % (attributes(MARKUP_MAX), b"")):
        with pytest.raises(ArgumentInvalid, match="more than 5000 tags and attributes"):
            parse_entry(body)
    half = MARKUP_MAX // 3
    assert parse_entry(ENTRY % (attributes(half), b"<a/>" * half)).tag.endswith("Q")
