"""Tokens made by the SDK and by hand, against the rules of a namespace and an entity."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote

import pytest
from azure.servicebus._pyamqp import utils as sdk

from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.refusals import Unauthorized
from twinbus.broker.sas import TOKEN_LENGTH_MAX, AcceptedToken, AccessPolicy, Grant
from twinbus.namespace.tokens import sign

NOW_S = 1_700_000_000.0
LATER_S = int(NOW_S) + 3600

ROOT = AuthorizationRule(
    key_name="RootManageSharedAccessKey",
    primary_key="SAS_KEY_VALUE",
    secondary_key="second+key/==",
    rights=frozenset({"Manage"}),
)
SENDER = AuthorizationRule(
    key_name="send only & more%", primary_key="s", rights=frozenset({"Send"})
)
ORDERS_READER = AuthorizationRule(
    key_name="reader", primary_key="orders-key", rights=frozenset({"Listen"})
)


def entity_rules(path: str) -> tuple[AuthorizationRule, ...]:
    return (ORDERS_READER,) if path == "shop/orders" else ()


POLICY = AccessPolicy([ROOT, SENDER], entity_rules)


def sdk_token(audience: str, rule_name: str, key: str) -> str:
    return str(sdk.generate_sas_token(audience, rule_name, key, LATER_S))  # type: ignore[no-untyped-call]


def refusal(token: str, now_s: float = NOW_S) -> str:
    with pytest.raises(Unauthorized) as caught:
        POLICY.verify(token, now_s)
    return caught.value.description


def test_a_token_of_the_sdk_grants_its_audience_and_all_rights_of_manage() -> None:
    audience = "sb://localhost:5672/Orders"
    token = sdk_token(audience, ROOT.key_name, "SAS_KEY_VALUE")
    grant = POLICY.verify(token, NOW_S)
    assert grant == Grant(
        path="orders",
        rights=frozenset({"Manage", "Send", "Listen"}),
        expires_at_s=float(LATER_S),
        rule_name=ROOT.key_name,
        signed_with="SAS_KEY_VALUE",
    )


def test_the_twice_encoded_rule_name_of_the_python_sdk_is_understood() -> None:
    token = sdk_token("sb://localhost/q", SENDER.key_name, "s")
    assert POLICY.verify(token, NOW_S).rights == {"Send"}


def test_our_own_token_is_accepted_with_either_key() -> None:
    for key in (ROOT.primary_key, ROOT.secondary_key):
        token = sign("https://localhost/", ROOT.key_name, key, LATER_S)
        assert POLICY.verify(token, NOW_S).path == ""


def test_lower_case_escapes_as_dotnet_signs_them_are_accepted() -> None:
    resource = quote("sb://localhost/q", safe="").replace("%3A", "%3a").replace("%2F", "%2f")
    digest = hmac.new(b"SAS_KEY_VALUE", f"{resource}\n{LATER_S}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(digest).decode(), safe="")
    token = f"SharedAccessSignature sr={resource}&sig={signature}&se={LATER_S}&skn={ROOT.key_name}"
    assert POLICY.verify(token, NOW_S).path == "q"


def test_an_entity_rule_works_on_its_entity_and_below_only() -> None:
    token = sign("sb://h/Shop/Orders/$management", "reader", "orders-key", LATER_S)
    assert POLICY.verify(token, NOW_S).rights == {"Listen"}
    assert "named 'reader'" in refusal(sign("sb://h/shop", "reader", "orders-key", LATER_S))


def counting_policy() -> tuple[AccessPolicy, list[str]]:
    """A policy, and the paths whose rules it asked for."""
    looked_for: list[str] = []

    def rules_of(path: str) -> tuple[AuthorizationRule, ...]:
        looked_for.append(path)
        return ()

    return AccessPolicy([ROOT], rules_of), looked_for


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a" + "/" * 7_900 + "a", "limit is 520"),
        ("a/" * 3_900 + "a", "limit is 520"),
        ("shop//orders", "empty part"),
    ],
    ids=("slashes", "parts", "short"),
)
def test_an_audience_that_no_address_has_is_refused_before_any_rule_is_looked_for(
    path: str, why: str
) -> None:
    policy, looked_for = counting_policy()
    token = f"SharedAccessSignature sr=sb://h/{path}&sig=x&se={LATER_S}&skn=%2572oot"
    with pytest.raises(Unauthorized, match=why) as caught:
        policy.verify(token, NOW_S)
    assert (looked_for, len(caught.value.description) < 500) == ([], True)


def test_rules_are_looked_for_once_at_each_part_of_the_longest_address() -> None:
    longest = "a/" * 259 + "bc"
    policy, looked_for = counting_policy()
    with pytest.raises(Unauthorized, match="named"):
        policy.verify(sign(f"sb://h/{longest}", "%2572oot", "x", LATER_S), NOW_S)
    assert len(looked_for) == len(set(looked_for)) == 260


@pytest.mark.parametrize(
    ("path", "address", "allowed"),
    [
        ("", "anything/at/all", True),
        ("orders", "ORDERS", True),
        ("orders", "/orders/$DeadLetterQueue/$management", True),
        ("orders", "orders2", False),
        ("orders", "order", False),
        ("orders/$management", "orders", False),
    ],
)
def test_a_grant_covers_whole_path_segments(path: str, address: str, allowed: bool) -> None:
    grant = Grant(path=path, rights=frozenset({"Send"}), expires_at_s=1, rule_name="r")
    assert grant.allows(address, "Send") is allowed
    assert grant.allows(address, "Listen") is False


def test_a_token_ends_at_its_expiry_and_the_refusal_says_when() -> None:
    token = sign("sb://h/q", ROOT.key_name, ROOT.primary_key, LATER_S)
    grant = POLICY.verify(token, LATER_S - 0.001)
    assert not grant.is_expired(LATER_S - 0.001)
    assert grant.is_expired(LATER_S)
    assert "expired at 2023-11-14 23:13:20 UTC, 5 s ago" in refusal(token, LATER_S + 5)


def test_refusals_name_the_fault_and_never_the_key() -> None:
    wrong = sign("sb://h/q", ROOT.key_name, "not the key", LATER_S)
    assert refusal(wrong) == (
        "InvalidSignature: The token has an invalid signature. "
        "The signature does not match a key of the shared access rule "
        "'RootManageSharedAccessKey'; check SharedAccessKey."
    )
    assert "named 'Rot'" in refusal(sign("sb://h/q", "Rot", "SAS_KEY_VALUE", LATER_S))
    assert "is no URI" in refusal(sign("orders", ROOT.key_name, "SAS_KEY_VALUE", LATER_S))
    assert "is no URI" in refusal(sign("sb://[::1/q", ROOT.key_name, "SAS_KEY_VALUE", LATER_S))
    assert "JSON web token is not accepted" in refusal("eyJhbGciOi.J9.x")
    assert "JSON web token is not accepted" in refusal("Bearer abc")
    assert "must begin with" in refusal("Basic abc")
    assert str(TOKEN_LENGTH_MAX) in refusal("SharedAccessSignature " + "x" * TOKEN_LENGTH_MAX)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("&se=", "&xx="), "lacks se"),
        (("sig=", "sig=%00"), "not base64"),
        (("&se=", "&se=-"), "no whole number"),
        (("&se=", "&se=9999999999999999"), "no whole number"),
        (("&skn=", "&se=1&skn="), "'se' twice"),
        (("%2Fq&", "%2Fp&"), "signature does not match"),
    ],
)
def test_a_tampered_token_is_refused(change: tuple[str, str], expected: str) -> None:
    token = sign("sb://h/q", ROOT.key_name, ROOT.primary_key, LATER_S)
    assert expected in refusal(token.replace(*change))


def test_an_empty_secondary_key_is_no_key() -> None:
    assert "does not match" in refusal(sign("sb://h/q", SENDER.key_name, "", LATER_S))


def test_a_token_that_is_accepted_as_it_stands_carries_its_rights_on_everything() -> None:
    token = AcceptedToken(name="app", text="eyJ.web.token", rights=frozenset({"Send"}))
    policy = AccessPolicy([ROOT], tokens=lambda: [token])
    for shown in ("eyJ.web.token", "Bearer eyJ.web.token"):
        grant = policy.verify(shown, NOW_S)
        assert (grant.rule_name, grant.rights) == ("app", frozenset({"Send"}))
        assert grant.allows("orders/$management", "Send")
        assert not grant.allows("orders", "Listen")
        assert not grant.is_expired(NOW_S + 1e9)
    with pytest.raises(Unauthorized, match="not accepted"):
        policy.verify("eyJ.web.token2", NOW_S)
    assert "eyJ" not in repr(token)


def test_an_accepted_token_ends_at_its_expiry() -> None:
    token = AcceptedToken(
        name="app", text="eyJ.web.token", rights=frozenset({"Send"}), expires_at_s=NOW_S + 10
    )
    policy = AccessPolicy([ROOT], tokens=lambda: [token])
    assert policy.verify("Bearer eyJ.web.token", NOW_S).expires_at_s == NOW_S + 10
    with pytest.raises(Unauthorized, match="ExpiredToken: The token is expired") as caught:
        policy.verify("Bearer eyJ.web.token", NOW_S + 10)
    assert "eyJ" not in caught.value.description


def test_a_policy_that_requires_tokens_refuses_even_a_good_signature() -> None:
    token = AcceptedToken(name="app", text="eyJ.web.token", rights=frozenset({"Send"}))
    policy = AccessPolicy([ROOT], tokens=lambda: [token], require_token=True)
    assert policy.verify("eyJ.web.token", NOW_S).rule_name == "app"
    with pytest.raises(Unauthorized, match="LocalAuthDisabled"):
        policy.verify(sign("sb://h/q", ROOT.key_name, ROOT.primary_key, LATER_S), NOW_S)
    with pytest.raises(Unauthorized, match="not accepted"):
        policy.verify("eyJ.other", NOW_S)
