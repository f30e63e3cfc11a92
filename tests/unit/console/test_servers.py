"""`twinbus serve` refuses options that it cannot use, in one line and before it starts."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from tests.contract.certificates import write_server_files
from tests.unit.console.commands import run
from twinbus.console.options import GatewayOptions, require_private
from twinbus.console.output import WrongUse
from twinbus.console.servers import _options

USAGE_ERROR = 2


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line with which the command refuses to start."""
    ran = run(capsys, "serve", *words)
    assert (ran.status, ran.out) == (USAGE_ERROR, "")
    (line,) = ran.err.splitlines()
    assert line.startswith("twinbus: ")
    return line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["contoso:0", "--rule", "sender:key"], "NAME:KEY:RIGHTS"),
        (["contoso:0", "--rule", "sender:key:Fly"], "Fly"),
        (["contoso:0", "--rule", "sender::Send"], "NAME:KEY:RIGHTS"),
        (["con_toso:0"], "con_toso"),
        (["contoso:99999"], "99999"),
        (["contoso:http"], "http"),
        (["contoso:0", "Contoso:0"], "twice"),
        (["contoso:0", "--host", "0.0.0.0"], "--key"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert said in refusal(capsys, *words, "--ephemeral")


@pytest.mark.parametrize("rule", ["me:s3cret:Fly:Send", "me:s3cret:Fly"])
def test_a_key_in_a_bad_rule_is_not_printed(capsys: pytest.CaptureFixture[str], rule: str) -> None:
    assert "s3cret" not in refusal(capsys, "contoso:0", "--ephemeral", "--rule", rule)


def test_messages_need_one_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "--data" in refusal(capsys, "contoso:0")
    both = ("--data", str(tmp_path / "data"), "--ephemeral")
    assert "--ephemeral" in refusal(capsys, "contoso:0", *both)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tls-cert", "chain.pem"], "give the other one too"),
        (["--tls-cert", "nothing.pem", "--tls-key", "key.pem"], "--tls-cert nothing.pem cannot be"),
        (["--tls-cert", "chain.pem", "--tls-key", "."], "--tls-key . cannot be read"),
        (["--tls-cert", "chain.pem", "--tls-key", "other.pem"], "the key is not the certificate's"),
        (["--tls-cert", "key.pem", "--tls-key", "key.pem"], "both PEM"),
        (["--tls-cert", "text.pem", "--tls-key", "key.pem"], "no PEM file"),
        (["--tls-cert", "chain.pem", "--tls-key", "locked.pem"], "without a password"),
        (["--token", "app:eyJ.x"], "'app:***' is no token"),
        (["--token", "app:eyJ.x:Everything"], "'Everything' is no right"),
        (["--token", "app:eyJ.x:Send:soon"], "--token: 'soon' is no expiry"),
    ],
)
def test_tls_and_tokens_that_cannot_be_used_are_named_without_the_token(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_server_files(tmp_path)
    (tmp_path / "other.pem").write_bytes(trustme.CA().private_key_pem.bytes())
    (tmp_path / "text.pem").write_text("hello")
    (tmp_path / "locked.pem").write_bytes(_locked(tmp_path / "key.pem"))
    line = refusal(capsys, "contoso:0", "--ephemeral", *options)
    assert said.lower() in line.lower()
    assert "eyJ" not in line


def _locked(key: Path) -> bytes:
    found = serialization.load_pem_private_key(key.read_bytes(), None)
    return found.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


@pytest.mark.parametrize(
    ("content", "said"), [("", "has 0 lines"), ("a\nb\n", "has 2 lines"), (None, "cannot be read")]
)
def test_a_key_file_without_a_key_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str | None, said: str
) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    assert said in refusal(capsys, "contoso:0", "--ephemeral", "--key-file", str(file))


@pytest.mark.parametrize(
    ("mode", "owner", "user", "is_refused", "is_warned"),
    [
        (0o640, 1000, 1000, True, False),
        (0o604, 1000, 1000, True, False),
        (0o600, 1000, 1000, False, False),
        # A secret that is mounted belongs to root.
        (0o644, 0, 1000, False, False),
        (0o644, 0, 0, False, True),
        (0o600, 0, 0, False, False),
    ],
)
def test_a_file_of_secrets_that_others_can_read_is_refused_as_ssh_does(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    mode: int,
    owner: int,
    user: int,
    is_refused: bool,
    is_warned: bool,
) -> None:
    found = SimpleNamespace(st_mode=stat.S_IFREG | mode, st_uid=owner)
    monkeypatch.setattr(Path, "stat", lambda _: found)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    said = f"key has mode {mode:04o}: other users can get the secret in it; chmod 600 key"
    if is_refused:
        with pytest.raises(WrongUse, match=said):
            require_private(Path("key"))
    else:
        require_private(Path("key"))
    assert capsys.readouterr().err == (f"warning: {said}\n" if is_warned else "")


@pytest.mark.parametrize("option", ["--key-file", "--rule-file", "--tokens", "--tls-key"])
def test_each_file_of_secrets_is_checked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    asked: list[Path | None] = []

    def refuse(file: Path | None) -> None:
        asked.append(file)
        if file is not None:
            raise WrongUse(f"{file} is not private")

    monkeypatch.setattr("twinbus.console.options.require_private", refuse)
    monkeypatch.setattr("twinbus.console.servers.require_private", refuse)
    certificate = ["--tls-cert", "chain.pem"] if option == "--tls-key" else []
    assert "s3cret is not private" in refusal(
        capsys, "contoso:0", "--ephemeral", option, "s3cret", *certificate
    )


def test_a_gateway_diverts_by_the_causes_that_it_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran = run(capsys, "gateway", "contoso:0", "--divert-on", "full", "--divert-on", "busy")
    said = "twinbus: --divert-on must be disabled or full or throttled; got 'busy'\n"
    assert (ran.status, ran.out, ran.err) == (USAGE_ERROR, "", said)
    given = GatewayOptions(namespace="contoso:0", divert_on=["full", "disabled"])
    assert _options(given, 20.0).divert_on == {"full", "disabled"}
    assert _options(GatewayOptions(namespace="contoso:0"), 20.0).divert_on == frozenset()
