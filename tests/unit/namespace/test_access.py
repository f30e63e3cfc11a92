"""The description of how to reach a namespace: its two forms, its errors, and no secret in it."""

from __future__ import annotations

import pickle

import pytest
from azure.servicebus import TransportType

from twinbus.namespace.access import NamespaceAccess
from twinbus.namespace.address import HttpProxy, NetworkRoute

HOST = "contoso.servicebus.windows.net"
KEY = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=Root;SharedAccessKey=s3cret"


def test_an_address_names_its_credential_and_its_route() -> None:
    text = (
        f"sb://{HOST}?credential=managed-identity:1234&transport=websocket"
        "&proxy=http://proxy.local:3128&endpoint=sb://gateway.local:8443"
    )
    access = NamespaceAccess.parse(text)
    assert (access.host, access.port, access.credential) == (HOST, 5671, "managed-identity:1234")
    assert access.route(access.proxy) == NetworkRoute(
        websocket=True, proxy=HttpProxy("proxy.local", 3128), endpoint=("gateway.local", 8443)
    )
    assert repr(access) == (
        f"NamespaceAccess(sb://{HOST}, credential managed-identity:1234, websocket,"
        " proxy proxy.local:3128, endpoint gateway.local:8443)"
    )


def test_options_apply_where_the_text_says_nothing() -> None:
    options = {"credential": "default", "transport": "websocket", "endpoint": "gateway"}
    plain = NamespaceAccess.parse(f"sb://{HOST}:443/", name="shop", **options)
    assert (plain.credential, plain.transport, plain.port) == ("default", "websocket", 5671)
    assert (plain.name, plain.route("").endpoint) == ("shop", ("gateway", 443))
    own = NamespaceAccess.parse(f"SB://{HOST}?credential=env:TOKEN&transport=amqp", **options)
    assert (own.credential, own.transport) == ("env:TOKEN", "amqp")
    # The credential of a connection string is in it.
    string = NamespaceAccess.parse(KEY, **options)
    assert (string.credential, string.transport, string.connection_string) == ("", "websocket", KEY)


def test_it_travels_without_a_secret_and_shows_none() -> None:
    access = NamespaceAccess.parse(f"sb://{HOST}", credential="default", proxy="env:PROXY")
    assert pickle.loads(pickle.dumps(access)) == access
    assert "env:PROXY" not in repr(access)
    for shown in (
        repr(NamespaceAccess.parse(KEY, proxy="http://me:s3cret@proxy:1")),
        repr(HttpProxy.parse("http://me:s3cret@proxy:1")),
    ):
        assert "s3cret" not in shown
        assert "proxy" in shown


@pytest.mark.parametrize(
    ("text", "options", "complaint"),
    [
        (f"sb://{HOST}", {}, "needs a credential: default, managed-identity"),
        (f"sb://{HOST}", {"credential": "defualt"}, "a credential is default.*got 'defualt'"),
        (f"sb://{HOST}", {"credential": "env:"}, "a credential is default"),
        (f"sb://{HOST}?credential", {}, "NAME=VALUE"),
        (f"sb://{HOST}?user=me", {}, "takes credential, transport, proxy, endpoint; got 'user'"),
        (f"sb://me@{HOST}", {"credential": "default"}, "has no user"),
        ("sb://", {"credential": "default"}, "a namespace is HOST"),
        (f"sb://{HOST}", {"credential": "default", "transport": "tcp"}, "amqp or websocket"),
        (KEY, {"transport": "amqp", "proxy": "http://p:1"}, "a proxy carries AMQP over WebSocket"),
        (KEY, {"proxy": "https://p:1"}, "a proxy is http://HOST:PORT"),
        (KEY, {"proxy": "p"}, "a proxy is http://HOST:PORT"),
        (KEY, {"proxy": "env:a b"}, "a proxy from a variable is env:NAME"),
        (KEY, {"endpoint": "gateway:x"}, "HOST:PORT"),
        ("nonsense", {}, "connection string"),
    ],
)
def test_what_is_no_access_is_refused_in_one_line(
    text: str, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        NamespaceAccess.parse(text, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"sb://{HOST}", {"credential": "SharedAccessSignature sr=x&sig=s3cret&se=1&skn=Root"}),
        (f"sb://{HOST}", {"credential": "eyJ0.s3cret"}),
        (f"sb://{HOST}?credential=s3cret.1", {}),
        (KEY, {"proxy": "ftp://me:s3cret@proxy:1"}),
        (KEY, {"proxy": "http://me:s3cret@proxy:port"}),
    ],
)
def test_a_secret_in_the_wrong_place_is_not_repeated(text: str, options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"a (credential|proxy) is") as caught:
        NamespaceAccess.parse(text, **options)
    assert "s3cret" not in str(caught.value)


def test_a_proxy_keeps_its_login_for_the_wire() -> None:
    proxy = HttpProxy.parse("http://me:p%40ss@[::1]:3128")
    assert (proxy.host, proxy.port, proxy.user, proxy.password) == ("::1", 3128, "me", "p@ss")
    assert proxy.url == "http://[::1]:3128"
    assert proxy.headers == {"Proxy-Authorization": "Basic bWU6cEBzcw=="}
    assert HttpProxy.parse("proxy:3128").headers == {}


@pytest.mark.parametrize(
    ("options", "route"),
    [
        ({}, NetworkRoute()),
        ({"transport_type": TransportType.Amqp}, NetworkRoute()),
        ({"transport_type": TransportType.AmqpOverWebsocket}, NetworkRoute(websocket=True)),
        (
            {"http_proxy": {"proxy_hostname": "http://p", "proxy_port": 1, "username": "me"}},
            NetworkRoute(websocket=True, proxy=HttpProxy("p", 1, "me")),
        ),
        ({"custom_endpoint_address": "sb://g"}, NetworkRoute(websocket=True, endpoint=("g", 443))),
        (
            {"custom_endpoint_address": "g:1", "transport_type": TransportType.Amqp},
            NetworkRoute(endpoint=("g", 1)),
        ),
    ],
)
def test_keywords_of_the_sdk_make_the_route_that_the_sdk_takes(
    options: dict[str, object], route: NetworkRoute
) -> None:
    assert NetworkRoute.of_sdk_options(options) == route
