"""Connection strings, hosts, ports and labels, and the description of how to reach them."""

from __future__ import annotations

import asyncio
import pickle
from types import SimpleNamespace

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import TransportType

from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.sas import AccessPolicy
from twinbus.namespace.access import Endpoint, NamespaceAccess, endpoint_of
from twinbus.namespace.address import HttpProxy, NetworkRoute, namespace_label
from twinbus.namespace.namespace import Namespace
from twinbus.namespace.tokens import SAS_TOKEN, TOKEN_LIFE_S, WEB_TOKEN, NamespaceToken

AZURE = (
    "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=a+b/c="
)
LOCAL = (
    "Endpoint=sb://localhost:5700;SharedAccessKeyName=Root;SharedAccessKey=k;"
    "UseDevelopmentEmulator=true;"
)


def test_azure_is_reached_with_tls_and_a_local_broker_without() -> None:
    azure, local = Endpoint.parse(AZURE), Endpoint.parse(LOCAL)
    assert (azure.host, azure.port, azure.tls) == ("contoso.servicebus.windows.net", 5671, True)
    assert (local.host, local.port, local.tls) == ("localhost", 5700, False)
    assert azure.administration == ("contoso.servicebus.windows.net", 443, True)
    assert local.administration == ("localhost", 5700, False)
    assert (azure.label, local.label) == ("contoso", "localhost-5700")
    named = Endpoint.parse(LOCAL.replace(":5700", ":5700/#eu"))
    assert (named.host, named.port, named.label) == ("localhost", 5700, "eu")


def test_a_token_is_good_for_its_entity_until_it_expires() -> None:
    rules = [AuthorizationRule(key_name="Root", primary_key="a+b/c=", rights=frozenset({"Manage"}))]
    policy = AccessPolicy(rules)
    token = asyncio.run(Endpoint.parse(AZURE).token("contoso/x-servicebus-transfer/0", 1_000.0))
    grant = policy.verify(token.text, 1_001.0)
    assert grant.allows("contoso/x-servicebus-transfer/0", "Listen")
    assert not grant.allows("orders", "Listen")
    assert token.expires_at_s == 1_000.0 + TOKEN_LIFE_S


def test_a_key_is_never_shown() -> None:
    assert "a+b/c=" not in repr(Endpoint.parse(AZURE))


def test_a_side_may_be_an_object_that_holds_a_connection_string_and_a_name() -> None:
    side = SimpleNamespace(connection_string=AZURE, label="mine")
    assert endpoint_of(side).label == "mine"
    assert endpoint_of(AZURE) == Endpoint.parse(AZURE)
    with pytest.raises(TypeError, match="connection string or as a Namespace"):
        endpoint_of(SimpleNamespace(connection_string=None))


def token_of(side: object, now_s: float = 1_000.0) -> NamespaceToken:
    return asyncio.run(endpoint_of(side).token("orders", now_s))


def test_a_signature_is_shown_as_it_is_until_its_own_end() -> None:
    signature = "SharedAccessSignature sr=sb%3A%2F%2Fcontoso&sig=x&se=1500&skn=Root"
    host = "Endpoint=sb://contoso.servicebus.windows.net/"
    credential = AzureSasCredential(signature)
    for side in (
        f"{host};SharedAccessSignature={signature}",
        Namespace("contoso.servicebus.windows.net", credential),
    ):
        assert token_of(side) == NamespaceToken(signature, 1_500.0, SAS_TOKEN)
        assert token_of(side).header == signature
        assert "sig=x" not in repr(endpoint_of(side))
    endpoint = endpoint_of(Namespace("contoso.servicebus.windows.net", credential))
    credential.update(signature.replace("1500", "2500"))
    assert asyncio.run(endpoint.token("orders", 1_000.0)).expires_at_s == 2_500.0


def test_a_named_key_signs_and_may_be_rotated() -> None:
    credential = AzureNamedKeyCredential("Root", "old")
    endpoint = endpoint_of(Namespace("contoso.servicebus.windows.net", credential))
    credential.update("Root", "new")
    rules = [AuthorizationRule(key_name="Root", primary_key="new", rights=frozenset({"Send"}))]
    token = asyncio.run(endpoint.token("orders", 1_000.0))
    assert AccessPolicy(rules).verify(token.text, 1_001.0).allows("orders", "Send")
    assert endpoint.tokens.who == "the key Root"


@pytest.mark.parametrize("is_async", [True, False])
def test_a_credential_is_asked_for_a_web_token_whether_it_is_for_asyncio_or_not(
    is_async: bool,
) -> None:
    asked: list[str] = []

    class Fetching:
        def get_token(self, *scopes: str, **_: object) -> AccessToken:
            asked.extend(scopes)
            return AccessToken("web-token", 9_000)

    class FetchingAsync:
        async def get_token(self, *scopes: str, **_: object) -> AccessToken:
            return Fetching().get_token(*scopes)

    side = Namespace("contoso.servicebus.windows.net", (FetchingAsync if is_async else Fetching)())
    assert token_of(side) == NamespaceToken("web-token", 9_000.0, WEB_TOKEN)
    assert token_of(side).header == "Bearer web-token"
    assert set(asked) == {"https://servicebus.azure.net/.default"}
    assert "Fetching" in endpoint_of(side).tokens.who


def test_a_port_of_its_own_with_tls_serves_the_administration_too() -> None:
    side = Namespace("localhost:5700", AzureNamedKeyCredential("Root", "k"))
    endpoint = endpoint_of(side)
    assert (endpoint.host, endpoint.port, endpoint.tls) == ("localhost", 5700, True)
    assert endpoint.administration == ("localhost", 5700, True)
    assert endpoint.certificates is side.certificates()


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
        ("", "is empty"),
        (CREDENTIALS, "needs Endpoint=sb://.* has no Endpoint"),
        ("Endpoint=sb://contoso/;SharedAccessKeyName=Root", "neither SharedAccessKeyName"),
        ("Endpoint=sb://contoso;justasecret", "one part has no '='"),
        (f"Endpoint=https://contoso;{CREDENTIALS}", "needs Endpoint=sb://"),
        (f"Endpoint=sb://contoso:0;{CREDENTIALS}", "HOST:PORT"),
        (f"Endpoint=sb://contoso:99999;{CREDENTIALS}", "HOST:PORT"),
        (f"Endpoint=sb://contoso:x;{CREDENTIALS}", "HOST:PORT"),
        (f"Endpoint=sb://;{CREDENTIALS}", "HOST:PORT"),
    ],
)
def test_a_pair_and_its_syphon_refuse_the_same_strings(text: str, complaint: str) -> None:
    for read in (Namespace.from_connection_string, Endpoint.parse):
        with pytest.raises(ValueError, match=complaint) as caught:
            read(text)
        assert "justasecret" not in str(caught.value)
        assert "\n" not in str(caught.value)


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
