"""What the primary gets of a description, and the entities that it forwards to."""

from __future__ import annotations

import time
from xml.etree import ElementTree as ET

import pytest

from twinbus.broker.admin.atom import ATOM, CONNECT, parse_entry
from twinbus.broker.refusals import ArgumentInvalid
from twinbus.gateway.descriptions import FORWARDING, CheckedDescription, checked_description

TO, DEAD_LETTERS_TO = FORWARDING


def entry(inner: str, before: str = "") -> bytes:
    return (
        f'{before}<entry xmlns="{ATOM}"><content type="application/xml">'
        f'<QueueDescription xmlns="{CONNECT}">{inner}</QueueDescription></content></entry>'
    ).encode()


def forwarding(address: str, element: str = TO) -> CheckedDescription:
    return checked_description(entry(f"<{element}>{address}</{element}>"))


def test_the_entities_that_a_description_forwards_to() -> None:
    assert checked_description(b"") == CheckedDescription()
    assert forwarding("").destinations == ()
    both = entry(
        f"<{TO}> sb://contoso/pay<!-- -->ments </{TO}>"
        f"<x:{DEAD_LETTERS_TO} xmlns:x='{CONNECT}'><![CDATA[a/dead]]></x:{DEAD_LETTERS_TO}>"
    )
    assert checked_description(both).destinations == (
        (FORWARDING[TO], "payments"),
        (FORWARDING[DEAD_LETTERS_TO], "a/dead"),
    )


@pytest.mark.parametrize(
    "address",
    [
        "mine/../payments",
        "sb://h/mine/../payments",
        "sb://h/mine/%2e%2e/payments",
        "sb://h/mine\\..\\payments",
        "sb://h\\payments",
        "sb://h\\payments\\?/mine",
        "sb://h/?/payments",
        "sb://h/#/payments",
        "sb://h/mine#/../payments",
        "sb://x@h/mine",
        "//payments/mine",
        "/payments",
        "mine//payments",
        "mine\u2044payments",
        "mi\u017fe",
        "mine?x=/payments",
        "sb:payments",
    ],
)
@pytest.mark.parametrize("element", FORWARDING)
def test_a_destination_that_another_reader_may_take_for_another_entity_is_refused(
    address: str, element: str
) -> None:
    with pytest.raises(ArgumentInvalid, match=f"{element}: .* is not the path of a queue or topic"):
        forwarding(address, element)


def test_a_name_with_an_element_inside_is_refused() -> None:
    """The right would be that to `payments-archive`, and the primary forward to `payments`."""
    with pytest.raises(ArgumentInvalid, match="text without elements"):
        forwarding("payments<x/>-archive")


def test_a_destination_is_given_once() -> None:
    with pytest.raises(ArgumentInvalid, match="has ForwardTo twice"):
        checked_description(entry(f"<{TO}>mine</{TO}><{TO}>payments</{TO}>"))


def test_a_destination_beside_the_description_is_checked_too() -> None:
    """`parse_entry` reads the first content of an entry; another reader may read the last."""
    hidden = entry("").replace(
        b"</entry>", f"<content><q><{TO}>payments</{TO}></q></content></entry>".encode()
    )
    assert checked_description(hidden).destinations == ((FORWARDING[TO], "payments"),)


@pytest.mark.parametrize("encoding", ["utf-7", "utf-16", "iso-8859-1", "utf-8"])
def test_a_declared_encoding_does_not_reach_the_primary(encoding: str) -> None:
    """In UTF-7 the text of this element would be a destination."""
    declared = f'<?xml version="1.0" encoding="{encoding}"?>'
    hidden = f"<UserMetadata>+ADw-/UserMetadata+AD4APA-{TO}+AD4-payments \u00e9</UserMetadata>"
    body = checked_description(entry(hidden, declared)).body
    assert body == entry(hidden)
    assert b"<?" not in body


def test_what_was_read_is_written_with_its_prefixes_and_without_comments() -> None:
    text = entry(
        '<Filter xmlns:i="urn:i" i:type="SqlFilter"><E>a &lt; 1 &amp; b = \'"\' &#233;</E>'
        '<V xmlns:d="urn:d" i:type="d:int" x="&quot;&#10;">5</V><!-- x --><?y z?><W/></Filter>'
    )
    body = checked_description(text).body
    assert b'xmlns:d="urn:d" i:type="d:int"' in body
    assert b"x --" not in body
    assert b"<?" not in body
    assert ET.canonicalize(body.decode()) == ET.canonicalize(text.decode().replace("<?y z?>", ""))
    assert parse_entry(body).tag == f"{{{CONNECT}}}QueueDescription"
    assert checked_description(body).body == body


def test_a_deep_or_long_body_takes_little_time() -> None:
    begun = time.process_time()
    with pytest.raises(ArgumentInvalid, match="more than 5000 tags"):
        checked_description(entry("<a/>" * 50_000))
    with pytest.raises(ArgumentInvalid, match="nested 33 deep; the limit is 32"):
        checked_description(entry("<a>" * 2_000 + "</a>" * 2_000))
    assert time.process_time() - begun < 2
