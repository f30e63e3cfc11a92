"""Connection strings, and the tokens that are signed with their keys."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential

from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.sas import AccessPolicy
from twinbus.namespace.access import Endpoint, endpoint_of
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


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("SharedAccessKeyName=Root", "needs Endpoint=sb://"),
        ("Endpoint=https://contoso/", "needs Endpoint=sb://"),
        ("Endpoint=sb://contoso/;SharedAccessKeyName=Root", "neither SharedAccessKeyName"),
    ],
)
def test_what_is_no_connection_string_is_refused_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Endpoint.parse(text)


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
