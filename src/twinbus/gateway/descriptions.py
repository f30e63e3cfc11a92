"""A description of an entity that a client sends: where it forwards, and what is handed on of it.

The primary acts on it with the gateway's credential. So it gets what was read here, written anew:
no byte of the client's, no declared encoding, no document type. No other way of reading it leads to
a destination that was not checked.

A client knows the gateway's host only. What it puts into ForwardTo must name the primary, which
forwards within itself, and what the primary answers must name the gateway. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from twinbus.broker.admin.api import SUPPLEMENTARY_HEADERS
from twinbus.broker.admin.atom import parse_entry
from twinbus.broker.refusals import ArgumentInvalid
from twinbus.servicebus.names import is_entity_name, not_an_entity_name

FORWARDING: Final = dict(
    zip(("ForwardTo", "ForwardDeadLetteredMessagesTo"), SUPPLEMENTARY_HEADERS, strict=True)
)
"""Elements that name an entity to which the primary will send, and the header for its token."""

DEPTH_MAX: Final = 32
"""Elements within elements; a description has at most seven."""

_ADDRESS: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9.:\[\]-]{1,260}/)?(.*?)/?")
"""A destination as SDKs write it: the entity's name, or that behind the host of the namespace."""

_PLACES: Final = re.compile(
    rb"(<(?:\w+:)?(?:id|ForwardTo|ForwardDeadLetteredMessagesTo)(?:\s[^<>]*)?>|\shref=\")"
    rb"(\s*[A-Za-z]+://)([^/?#<>\"&\s]+)"
)
"""Where a description has an address of its namespace: what is before it, its scheme, its host."""

_HOST: Final = re.compile(r"[A-Za-z0-9.:\[\]-]{1,260}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedDescription:
    """A description as the primary gets it."""

    body: bytes = b""
    destinations: tuple[tuple[str, str], ...] = ()
    """The entities that it forwards to, each with the name of the header for its token."""


def checked_description(body: bytes) -> CheckedDescription:
    """Read the body of a request and write it anew; `ArgumentInvalid` if it is no description."""
    if not body:
        return CheckedDescription()
    # For its refusals: UTF-8, no document type, one description.
    parse_entry(body)
    rewriting = _Rewriting()
    rewriting.read(body.decode("utf-8-sig"))
    return CheckedDescription(
        body="".join(rewriting.written).encode(), destinations=tuple(rewriting.found.items())
    )


class _Rewriting:
    """Writes elements, attributes and text as they are read; drops everything else."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.found: dict[str, str] = {}
        """Destinations by the header for their token."""
        self._depth = 0
        self._naming: str | None = None
        """The element with a destination that is being read."""
        self._name = ""

    def read(self, text: str) -> None:
        parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.ordered_attributes = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        try:
            # As bytes with this encoding, which is stronger than the one that the text declares.
            parser.Parse(text.encode(), True)
        except expat.ExpatError as error:
            raise ArgumentInvalid(f"the request body is not well-formed XML: {error}") from None

    def _start(self, name: str, attributes: Any) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ArgumentInvalid(
                f"the request body has elements nested {self._depth} deep; the limit is {DEPTH_MAX}"
            )
        if self._naming is not None:
            # The primary may read another name out of it than the one whose right is checked.
            raise ArgumentInvalid("an entity to forward to is named by text without elements in it")
        local = name.rpartition(":")[2]
        if local in FORWARDING:
            self._naming, self._name = local, ""
        pairs = zip(attributes[::2], attributes[1::2], strict=True)
        self.written.append(f"<{name}{''.join(f' {key}={quoteattr(v)}' for key, v in pairs)}>")

    def _text(self, text: str) -> None:
        if self._naming is not None:
            self._name += text
        else:
            self.written.append(escape(text))

    def _end(self, name: str) -> None:
        self._depth -= 1
        if self._naming is not None:
            address, self._naming = self._name.strip(), None
            self.written.append(address)
            if address:
                self._add(name.rpartition(":")[2], address)
        self.written.append(f"</{name}>")

    def _add(self, element: str, address: str) -> None:
        found = _ADDRESS.fullmatch(address)
        path = found[1] if found is not None else address
        # Its characters have no other reading in XML or in an address.
        if not is_entity_name(path):
            raise ArgumentInvalid(f"{element}: {not_an_entity_name(path)}")
        header = FORWARDING[element]
        if header in self.found:
            raise ArgumentInvalid(f"the request body has {element} twice")
        self.found[header] = path


def with_host(body: bytes, old: str, new: str) -> bytes:
    """The body with addresses on the host `old` as addresses on `new`; others stay as they are."""
    if not _HOST.fullmatch(new):
        return body  # It is a header of the client.
    before, after = old.lower().encode(), new.encode()

    def place(found: re.Match[bytes]) -> bytes:
        start, scheme, host = found.groups()
        return start + scheme + (after if host.lower() == before else host)

    return _PLACES.sub(place, body)
