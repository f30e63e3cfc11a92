"""Hosts, ports and labels: one rule for a pair, its syphon and the commands."""

from __future__ import annotations

import asyncio

import pytest

from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.sas import AccessPolicy
from twinbus.namespace.access import Endpoint
from twinbus.namespace.address import namespace_label
from twinbus.namespace.namespace import Namespace

CREDENTIALS = "SharedAccessKeyName=Root;SharedAccessKey=k"


@pytest.mark.parametrize(
    ("host", "port", "name", "label"),
    [
        ("contoso.servicebus.windows.net", 5671, None, "contoso"),
        ("Contoso.servicebus.windows.net", 5671, None, "contoso"),
        ("broker", 5671, None, "broker"),
        ("localhost", 5672, None, "localhost-5672"),
        ("LOCALHOST", 7000, None, "localhost-7000"),
        ("127.0.0.1", 7000, None, "localhost-7000"),
        ("10.1.2.3", 7000, None, "localhost-7000"),
        ("::1", 7000, None, "localhost-7000"),
        ("[::1]", 7000, None, "localhost-7000"),
        ("localhost", 5672, "shop-1.eu_2", "shop-1.eu_2"),
    ],
)
def test_the_label_comes_from_the_primary(
    host: str, port: int, name: str | None, label: str
) -> None:
    assert namespace_label(host, port, name) == label


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ü", "x" * 201])
def test_a_name_that_no_queue_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name must be"):
        namespace_label("localhost", 5672, name)


@pytest.mark.parametrize(
    ("host", "label"),
    [
        ("[::1]:5672", "localhost-5672"),
        ("[fe80::1]:7000", "localhost-7000"),
        ("127.0.0.1:7000", "localhost-7000"),
        ("LOCALHOST", "localhost-5672"),
        ("Contoso.servicebus.windows.net", "contoso"),
        ("10.contoso.net", "10"),
    ],
)
def test_a_pair_and_its_syphon_agree_on_address_and_label(host: str, label: str) -> None:
    text = f"Endpoint=sb://{host};{CREDENTIALS};UseDevelopmentEmulator=true"
    side, endpoint = Namespace.from_connection_string(text), Endpoint.parse(text)
    assert side.label == endpoint.label == label
    assert (side.host, side.port) == (endpoint.host, endpoint.port)


def test_a_token_for_an_ipv6_address_has_an_audience_that_the_broker_reads() -> None:
    text = f"Endpoint=sb://[::1]:5672;{CREDENTIALS};UseDevelopmentEmulator=true"
    token = asyncio.run(Endpoint.parse(text).token("orders", 1_000.0))
    rule = AuthorizationRule(key_name="Root", primary_key="k", rights=frozenset({"Send"}))
    assert AccessPolicy([rule]).verify(token.text, 1_001.0).allows("orders", "Send")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("Endpoint=https://contoso", "needs Endpoint=sb://"),
        ("Endpoint=sb://contoso:0", "HOST:PORT"),
        ("Endpoint=sb://contoso:x", "HOST:PORT"),
        ("Endpoint=sb://", "HOST:PORT"),
    ],
)
def test_a_pair_and_its_syphon_refuse_the_same_strings(text: str, complaint: str) -> None:
    for read in (Namespace.from_connection_string, Endpoint.parse):
        with pytest.raises(ValueError, match=complaint):
            read(f"{text};{CREDENTIALS}")
