"""Connection strings, and the tokens that are signed with their keys."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.sas import AccessPolicy
from twinbus.syphon.endpoint import TOKEN_LIFE_S, Endpoint, endpoint_of

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
    token = Endpoint.parse(AZURE).token("contoso/x-servicebus-transfer/0", 1_000.0)
    grant = policy.verify(token.text, 1_001.0)
    assert grant.allows("contoso/x-servicebus-transfer/0", "Listen")
    assert not grant.allows("orders", "Listen")
    assert token.expires_at_s == 1_000.0 + TOKEN_LIFE_S


def test_a_key_is_never_shown() -> None:
    assert "a+b/c=" not in repr(Endpoint.parse(AZURE))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "needs Endpoint=sb://"),
        ("Endpoint=https://contoso/", "needs Endpoint=sb://"),
        ("Endpoint=sb://contoso/;SharedAccessKeyName=Root", "lacks SharedAccessKey"),
    ],
)
def test_what_is_no_connection_string_is_refused_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Endpoint.parse(text)


def test_a_side_may_be_an_object_that_holds_a_connection_string_and_a_name() -> None:
    side = SimpleNamespace(connection_string=AZURE, label="mine")
    assert endpoint_of(side).label == "mine"
    assert endpoint_of(AZURE) == Endpoint.parse(AZURE)
    with pytest.raises(TypeError, match="shared access key"):
        endpoint_of(SimpleNamespace(connection_string=None))
