"""The Atom envelope of the administration API: entries, feeds and errors, and the request's entry.

Pure. Written as text with the prefixes Azure uses, because some SDKs read prefixes and not
namespaces; read with the standard parser, after what it must never see was refused.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape, quoteattr

from twinbus.broker.admin.atom_values import render_time
from twinbus.broker.refusals import ArgumentInvalid

ATOM = "http://www.w3.org/2005/Atom"
CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"

CONTENT_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_CONTENT_TYPE = "application/atom+xml;type=feed;charset=utf-8"
ERROR_CONTENT_TYPE = "application/xml; charset=utf-8"

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text_of(value: str) -> str:
    """`value` as XML text; characters that XML cannot carry become U+FFFD."""
    return escape(_NOT_XML.sub("\ufffd", value))


def tag(name: str, value: str) -> str:
    return f"<{name}>{text_of(value)}</{name}>"


def described(name: str, inner: str) -> str:
    """A description element, the root of what an entry carries."""
    return f'<{name} xmlns="{CONNECT}" xmlns:i="{INSTANCE}">{inner}</{name}>'


def render_entry(
    *, title: str, url: str, author: str, created_at_ms: int, updated_at_ms: int, content: str
) -> str:
    """One entity as an Atom entry: where it is, since when, and its description in XML."""
    return (
        f'<entry xmlns="{ATOM}">{tag("id", url)}<title type="text">{text_of(title)}</title>'
        f"{tag('published', render_time(created_at_ms))}"
        f"{tag('updated', render_time(updated_at_ms))}"
        f'<author>{tag("name", author)}</author><link rel="self" href={_attribute(url)}/>'
        f'<content type="application/xml">{content}</content></entry>'
    )


def render_feed(
    title: str, url: str, updated_at_ms: int, entries: list[str], next_url: str | None = None
) -> bytes:
    """The document that answers a list; clients ask on at `next_url` until there is none.

    An empty feed is also Azure's answer for an entity that does not exist.
    """
    more = f'<link rel="next" href={_attribute(next_url)}/>' if next_url else ""
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{text_of(title)}</title>{tag("id", url)}'
        f"{tag('updated', render_time(updated_at_ms))}"
        f'<link rel="self" href={_attribute(url)}/>{more}'
        f"{''.join(entries)}</feed>"
    ).encode()


def render_error(status: int, detail: str) -> bytes:
    return f"<Error><Code>{status}</Code>{tag('Detail', detail)}</Error>".encode()


def parse_entry(body: bytes) -> ET.Element:
    """The description element inside a request's entry; ArgumentInvalid when there is none."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ArgumentInvalid(
            "the request body is not UTF-8; send the Atom entry as UTF-8"
        ) from None
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ArgumentInvalid("the request body declares a document type, which is not accepted")
    try:
        root = ET.fromstring(text)  # noqa: S314 (no document type, so no entities to expand)
    except ET.ParseError as error:
        raise ArgumentInvalid(f"the request body is not well-formed XML: {error}") from None
    content = root.find(f"{{{ATOM}}}content")
    if root.tag != f"{{{ATOM}}}entry" or content is None or len(content) != 1:
        raise ArgumentInvalid(
            "the request body is not an Atom entry whose content holds one description"
        )
    return content[0]


def local_name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def child(element: ET.Element, name: str) -> ET.Element | None:
    """The named child in the Service Bus namespace, or None."""
    return element.find(f"{{{CONNECT}}}{name}")


def child_text(element: ET.Element, name: str) -> str | None:
    """The text of a named child; None when it is missing or empty."""
    found = child(element, name)
    return None if found is None else found.text or None


def instance_type(element: ET.Element) -> str:
    """The `xsi:type` of an element without its prefix; empty when it has none."""
    return element.get(f"{{{INSTANCE}}}type", "").rpartition(":")[2]


def _attribute(value: str) -> str:
    return quoteattr(_NOT_XML.sub("\ufffd", value))
