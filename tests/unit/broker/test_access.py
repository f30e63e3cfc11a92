"""Access: tokens and keys, and what each rule grants."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme
from azure.servicebus._pyamqp import utils as sdk
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.certificates import authority, client_context, write_server_files
from twinbus.broker import port_access
from twinbus.broker.access import Admission, ConnectionLimits, Newcomers, TokenFile, parse_tokens
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.embedded import parse_token
from twinbus.broker.refusals import ArgumentOutOfRange, Unauthorized
from twinbus.broker.sas import (
    AUDIENCE_MAX,
    NEVER_S,
    TOKEN_LENGTH_MAX,
    AcceptedToken,
    AccessPolicy,
    Grant,
    require_short,
)
from twinbus.errors import BrokerStartError
from twinbus.namespace.tokens import sign


def test_connections_in_all_are_bounded_whoever_opens_them() -> None:
    admission = Admission(ConnectionLimits(connections=2))
    for host in ("192.0.2.1", "192.0.2.2"):
        assert admission.why_not(host) is None
        admission.enter(host)
        admission.trust(host)
    assert "2 connections are open (--connections-max)" in str(admission.why_not("192.0.2.3"))
    admission.leave("192.0.2.1", trusted=True)
    assert admission.why_not("192.0.2.3") is None


def test_strangers_are_bounded_for_each_address_and_leave_room_for_others() -> None:
    admission = Admission(ConnectionLimits(strangers_per_address=2))
    for _ in range(2):
        admission.enter("192.0.2.1")
    assert "2 connections of its address" in str(admission.why_not("192.0.2.1"))
    assert admission.why_not("192.0.2.2") is None
    admission.trust("192.0.2.1")
    assert admission.why_not("192.0.2.1") is None
    admission.enter("192.0.2.1")
    admission.leave("192.0.2.1")
    assert admission.why_not("192.0.2.1") is None


def test_one_address_without_a_token_leaves_room_however_few_connections_there_are() -> None:
    for connections in (2, 10, 500):
        admission, taken = Admission(ConnectionLimits(connections=connections)), 0
        while admission.why_not("192.0.2.1") is None:
            admission.enter("192.0.2.1")
            taken += 1
        assert taken == connections * 9 // 10
        assert admission.why_not("192.0.2.2") is None


def test_all_addresses_of_one_ipv6_site_count_as_one() -> None:
    admission = Admission(ConnectionLimits(strangers_per_address=1))
    admission.enter("2001:db8:1:2::5")
    assert admission.why_not("2001:db8:1:2:ffff::9%eth0") is not None
    assert admission.why_not("2001:db8:1:3::5") is None


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("--connections-max", {"connections": 0}),
        ("--strangers-max", {"strangers_per_address": -1}),
        ("--open-limit", {"open_s": 0}),
        ("--token-limit", {"token_s": float("nan")}),
    ],
)
def test_a_limit_of_nothing_is_refused(option: str, given: dict[str, float]) -> None:
    with pytest.raises(BrokerStartError, match=f"{option} is above 0"):
        ConnectionLimits(**given)  # type: ignore[arg-type]


TEXT = """
# who   token    rights        expires
app     eyJ.one  send,Listen   2023-11-14T22:13:20Z
admin   eyJ.two  Manage        1700000000   # unix seconds
other   eyJ.tri  Send          never
"""


def test_a_line_names_a_token_its_rights_and_its_expiry() -> None:
    app, admin, other = parse_tokens(TEXT, "tokens")
    assert (app.name, app.text, app.rights) == ("app", "eyJ.one", frozenset({"Send", "Listen"}))
    assert app.expires_at_s == admin.expires_at_s == 1_700_000_000.0
    assert admin.rights == {"Manage"}
    assert other.expires_at_s == NEVER_S


def test_a_token_of_the_command_line_may_have_an_expiry() -> None:
    token = parse_token("app:eyJ.one:Send,Listen:2023-11-14T22:13:20Z")
    rights = frozenset({"Send", "Listen"})
    assert (token.name, token.text, token.rights) == ("app", "eyJ.one", rights)
    assert token.expires_at_s == 1_700_000_000.0
    assert parse_token("app:eyJ.one:Send").expires_at_s == NEVER_S


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("app secret Send", "line 1: a token has 4 fields .* not 3"),
        ("app secret Sent never", "'Sent' is no right"),
        ("app secret Send tomorrow", "'tomorrow' is no expiry"),
    ],
)
def test_a_bad_line_is_named_without_its_secret(line: str, expected: str) -> None:
    with pytest.raises(BrokerStartError, match=expected) as caught:
        parse_tokens(line, "tokens")
    assert "secret" not in str(caught.value)


def test_a_changed_file_is_read_again_and_a_bad_one_leaves_the_old_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text("a one Send never\n")
    tokens = TokenFile(path)
    assert [token.name for token in tokens()] == ["a"]
    new = tmp_path / "new"
    new.write_text("a one Send never\nb two Send never\n")
    new.replace(path)
    assert [token.name for token in tokens()] == ["a", "b"]
    path.write_text("what is this\n")
    os.utime(path, (1, 1))
    assert [token.name for token in tokens()] == ["a", "b"]
    assert "line 1" in caplog.text
    path.unlink()
    assert [token.name for token in tokens()] == ["a", "b"]


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(BrokerStartError, match="cannot read the tokens"):
        TokenFile(tmp_path / "none")


def renew(chain: Path, key: Path) -> None:
    """Write another certificate of the same host."""
    made: trustme.LeafCert = authority().issue_cert("localhost", "127.0.0.1")
    chain.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())


async def serial_of(port: int) -> str:
    """The number of the certificate that a new connection gets."""
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=client_context(), server_hostname="localhost"
    )
    shown = writer.get_extra_info("peercert")
    writer.close()
    return str(shown["serialNumber"])


async def test_new_handshakes_get_the_new_certificate(tmp_path: Path) -> None:
    chain, key = write_server_files(tmp_path)
    context = port_access.server_context(chain, key)
    watching = asyncio.create_task(port_access.reload_on_change(context, chain, key, 0.01))

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    first = await serial_of(port)
    key.write_text("half a change")
    await asyncio.sleep(0.05)
    assert await serial_of(port) == first
    renew(chain, key)
    async with asyncio.timeout(60):
        while await serial_of(port) == first:  # noqa: ASYNC110  # a file changes, no event
            await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.wait({watching})
    server.close()


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
    assert (
        "ExpiredToken: The token is expired. Expiration time: 2023-11-14 23:13:20 UTC, 5 s ago"
        in refusal(token, LATER_S + 5)
    )


@pytest.mark.parametrize(
    ("audience", "path"),
    [
        ("contoso.servicebus.windows.net", ""),
        ("contoso.servicebus.windows.net/Orders", "orders"),
        ("localhost:5672/orders", "orders"),
        ("127.0.0.1", ""),
    ],
)
def test_an_audience_may_lack_its_scheme_if_it_begins_with_a_host(audience: str, path: str) -> None:
    token = sign(audience, ROOT.key_name, ROOT.primary_key, LATER_S)
    assert POLICY.verify(token, LATER_S - 1).path == path


def test_refusals_name_the_fault_and_never_the_key() -> None:
    wrong = sign("sb://h/q", ROOT.key_name, "not the key", LATER_S)
    assert refusal(wrong) == (
        "InvalidSignature: The token has an invalid signature. "
        "The signature does not match a key of a shared access rule named "
        "'RootManageSharedAccessKey'; check SharedAccessKeyName and SharedAccessKey."
    )
    assert "named 'Rot'" in refusal(sign("sb://h/q", "Rot", "SAS_KEY_VALUE", LATER_S))
    assert "is no URI" in refusal(sign("orders", ROOT.key_name, "SAS_KEY_VALUE", LATER_S))
    assert "is no URI" in refusal(sign("orders/x.y", ROOT.key_name, "SAS_KEY_VALUE", LATER_S))
    assert "is no URI" in refusal(sign("sb://[::1/q", ROOT.key_name, "SAS_KEY_VALUE", LATER_S))
    assert "JSON web token is not accepted" in refusal("eyJhbGciOi.J9.x")
    assert "JSON web token is not accepted" in refusal("Bearer abc")
    assert "must begin with" in refusal("Basic abc")
    assert str(TOKEN_LENGTH_MAX) in refusal("SharedAccessSignature " + "x" * TOKEN_LENGTH_MAX)


@pytest.mark.parametrize("key", ["not the key", ROOT.primary_key])
def test_a_refusal_does_not_tell_which_rules_and_entities_exist(key: str) -> None:
    """A stranger who tries names must get one text, whether the rule is there or not."""
    there, elsewhere = (
        refusal(sign("sb://h/q", name, key, LATER_S)).replace(name, "NAME")
        for name in (SENDER.key_name, "nobody")
    )
    assert there == elsewhere


def test_a_name_of_a_token_is_bounded() -> None:
    require_short("x" * AUDIENCE_MAX)
    with pytest.raises(ArgumentOutOfRange, match="1025 characters, the limit is 1024"):
        require_short("x" * (AUDIENCE_MAX + 1))


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


def test_the_oldest_of_the_address_that_has_most_goes_for_a_newcomer() -> None:
    newcomers: Newcomers[str] = Newcomers(4)
    for number, host in enumerate(("2001:db8::1", "192.0.2.1", "2001:db8::2", "192.0.2.2")):
        assert newcomers.add(f"c{number}", host) is None
    # Both addresses of the /64 count as one, so it has most.
    assert newcomers.add("c4", "192.0.2.1") == "c0"
    assert newcomers.add("c5", "192.0.2.3") == "c1"
    assert list(newcomers) == ["c2", "c3", "c4", "c5"]
    newcomers.discard("c4")
    newcomers.discard("c4")
    assert newcomers.add("c6", "192.0.2.3") is None
    assert newcomers.add("c7", "192.0.2.4") == "c5"


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60))
def test_newcomers_are_bounded_and_only_the_largest_address_gives_way(
    steps: list[tuple[int, bool]],
) -> None:
    newcomers: Newcomers[int] = Newcomers(5)
    held: dict[int, int] = {}
    for number, (host, leaves) in enumerate(steps):
        if leaves and held:
            gone = min(held)
            newcomers.discard(gone)
            del held[gone]
        given_up = newcomers.add(number, f"192.0.2.{host}")
        if given_up is not None:
            counts = Counter(held.values())
            assert counts[held[given_up]] == max(counts.values())
            del held[given_up]
        held[number] = host
        assert list(newcomers) == list(held)
        assert len(newcomers) <= 5
