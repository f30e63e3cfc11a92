"""What the gateway reads of an administration request before the primary gets it."""

from __future__ import annotations

import pytest

from twinbus.broker.admin.atom import ATOM, CONNECT
from twinbus.broker.refusals import ArgumentInvalid
from twinbus.gateway.administration import _destinations


def entry(forward_to: str) -> bytes:
    return (
        f'<entry xmlns="{ATOM}"><content><QueueDescription xmlns="{CONNECT}">'
        f"<ForwardTo>{forward_to}</ForwardTo></QueueDescription></content></entry>"
    ).encode()


def test_the_entities_that_a_description_forwards_to() -> None:
    assert _destinations(b"") == []
    assert _destinations(entry("")) == []
    assert _destinations(entry(" sb://contoso/pay<!-- -->ments ")) == ["payments"]


def test_a_name_with_an_element_inside_is_refused() -> None:
    """The right would be that to `payments-archive`, and the primary forward to `payments`."""
    with pytest.raises(ArgumentInvalid, match="text without elements"):
        _destinations(entry("payments<x/>-archive"))
