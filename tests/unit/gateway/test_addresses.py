"""Addresses in descriptions of entities: the client's name of the gateway, and the primary's."""

from __future__ import annotations

import pytest

from twinbus.gateway.descriptions import with_host

THERE, HERE = "localhost:5690", "contoso.servicebus.windows.net"
ENTRY = (
    b'<entry><id>http://localhost:5690/q</id><link rel="self" href="http://localhost:5690/q"/>'
    b"<ForwardTo>https://LocalHost:5690/t</ForwardTo>"
    b"<ForwardDeadLetteredMessagesTo>sb://elsewhere/t</ForwardDeadLetteredMessagesTo>"
    b"<UserMetadata>sb://localhost:5690/q</UserMetadata></entry>"
)


def test_the_addresses_of_a_description_name_the_host_that_the_client_dialled() -> None:
    assert with_host(ENTRY, THERE, HERE) == (
        b"<entry><id>http://contoso.servicebus.windows.net/q</id>"
        b'<link rel="self" href="http://contoso.servicebus.windows.net/q"/>'
        b"<ForwardTo>https://contoso.servicebus.windows.net/t</ForwardTo>"
        b"<ForwardDeadLetteredMessagesTo>sb://elsewhere/t</ForwardDeadLetteredMessagesTo>"
        b"<UserMetadata>sb://localhost:5690/q</UserMetadata></entry>"
    )


@pytest.mark.parametrize(
    "element", [b"<ForwardTo>", b'<ns0:ForwardTo xmlns:ns0="x">', b"<ForwardTo >\n "]
)
def test_what_a_client_forwards_to_names_the_primary(element: bytes) -> None:
    asked = element + b"sb://contoso.servicebus.windows.net/t<"
    assert with_host(asked, HERE, THERE) == element + b"sb://localhost:5690/t<"
    plain = element + b"t<"
    assert with_host(plain, HERE, THERE) == plain


@pytest.mark.parametrize("host", ["", 'x"/><a b="', "a b", "h" * 261])
def test_a_header_that_is_no_host_changes_nothing(host: str) -> None:
    assert with_host(ENTRY, THERE, host) == ENTRY
