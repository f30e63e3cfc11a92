"""Who is let in: counted connections, and bearer tokens from a file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import trustme

from tests.contract.certificates import authority, client_context, write_server_files
from twinbus.broker import port_access
from twinbus.broker.access import Admission, ConnectionLimits, TokenFile, parse_tokens
from twinbus.broker.embedded import parse_token
from twinbus.broker.sas import NEVER_S
from twinbus.errors import BrokerStartError


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


async def test_new_handshakes_get_the_new_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_access, "RELOAD_CHECK_S", 0.01)
    chain, key = write_server_files(tmp_path)
    context = port_access.server_context(chain, key)
    watching = asyncio.create_task(port_access.reload_on_change(context, chain, key))

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
