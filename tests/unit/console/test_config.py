"""Options from the settings file, and those that say how a namespace is reached."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.unit.console.commands import run
from twinbus.console.options import AccessOptions, SidesOptions
from twinbus.extras import install_command

STRING = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=R;SharedAccessKey={}"
TEXT = """\
[pair.eu]
primary = "env:EU_PRIMARY"
secondary = "sb://contoso-dr.servicebus.windows.net"
credential = "managed-identity"
proxy = "http://me:s3cret@proxy:3128"
lease = true

[pair.us]
secondary = "sb://fabrikam-dr.servicebus.windows.net"
"""


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in "PRIMARY SECONDARY CREDENTIAL TRANSPORT PROXY ENDPOINT LEDGER".split():
        monkeypatch.delenv(f"TWINBUS_{name}", raising=False)
    monkeypatch.setenv("EU_PRIMARY", STRING.format("s3cret"))
    found = tmp_path / "twinbus.toml"
    found.write_text(TEXT)
    found.chmod(0o600)
    monkeypatch.setenv("TWINBUS_CONFIG", str(found))
    return found


def test_check_shows_each_value_its_origin_and_no_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.setenv("TWINBUS_LEDGER", "/var/ledger")
    ran = run(capsys, "config", "check", "--pair", "eu", "--label", "x", "--output", "json")
    assert (ran.status, ran.err) == (0, "")
    assert "s3cret" not in ran.out
    document = json.loads(ran.out)
    assert document["file"] == str(path)
    shown = {row["key"]: (row["value"], row["origin"]) for row in document["pairs"]["eu"]}
    assert shown == {
        "primary": (
            "sb://contoso.servicebus.windows.net, credential key or signature",
            "twinbus.toml:2, env:EU_PRIMARY",
        ),
        "secondary": (
            "sb://contoso-dr.servicebus.windows.net, credential managed-identity",
            "twinbus.toml:3",
        ),
        "label": ("x", "--label"),
        "credential": ("managed-identity", "twinbus.toml:4"),
        "proxy": ("http://proxy:3128, login hidden", "twinbus.toml:5"),
        "ledger": ("/var/ledger", "TWINBUS_LEDGER"),
        "lease": ("true", "twinbus.toml:6"),
    }
    assert all(row["meaning"] for row in document["pairs"]["eu"])


def test_check_explains_the_values_of_a_gateway(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    gateway = '[pair.eu.gateway]\naddress = "shop:5672"\nkey-file = "/run/key"\n'
    path.write_text(TEXT + gateway + "patience = 50\nsyphon = false\n")
    ran = run(capsys, "config", "check", "--pair", "eu", "--output", "json")
    rows = {row["key"]: row for row in json.loads(ran.out)["pairs"]["eu"]}
    shown = {key: row["value"] for key, row in rows.items() if key.startswith("gateway.")}
    assert (ran.status, shown) == (
        0,
        {
            "gateway.address": "shop:5672",
            "gateway.patience": "50",
            "gateway.syphon": "false",
            "gateway.key-file": "/run/key",
        },
    )
    assert rows["gateway.patience"]["origin"] == "twinbus.toml:13"
    assert rows["gateway.patience"]["meaning"].startswith("How long a client's send may wait")
    path.write_text(TEXT.replace("sb://contoso-dr.servicebus.windows.net", "embedded:/data"))
    ran = run(capsys, "config", "check", "--pair", "eu")
    assert (ran.status, "embedded:/data" in ran.out) == (0, True)


def test_check_shows_all_pairs_and_what_cannot_be_used_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.delenv("EU_PRIMARY")
    ran = run(capsys, "config", "check")
    assert (ran.status, ran.err) == (3, "")
    assert f"! primary: {path}:2: pair.eu.primary is env:EU_PRIMARY: it is not set" in ran.out
    assert "! secondary: sb://fabrikam-dr.servicebus.windows.net needs a credential" in ran.out
    assert "s3cret" not in ran.out


@pytest.mark.parametrize(
    "words",
    [
        ("--credential", "s3cret.token"),
        ("--proxy", "https://me:s3cret@p:1"),
        ("--primary", "SharedAccessKey=s3cret"),
        ("--label", "s3cret!"),
    ],
)
def test_check_does_not_show_a_wrong_value(
    capsys: pytest.CaptureFixture[str], path: Path, words: tuple[str, ...]
) -> None:
    ran = run(capsys, "config", "check", "--pair", "eu", *words)
    assert (ran.status, f"! {words[0][2:]}: " in ran.out) == (3, True)
    assert "s3cret" not in ran.out + ran.err


def test_a_wrong_file_is_one_line_and_exit_status_2(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    path.write_text(TEXT.replace("lease", "leese"))
    ran = run(capsys, "config", "check")
    assert ran == (
        *(2, ""),
        f"twinbus: {path}:6: pair.eu.leese is not a known key; did you mean lease?\n",
    )


def test_check_without_a_file_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TWINBUS_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    expected = tmp_path / "twinbus" / "twinbus.toml"
    ran = run(capsys, "config", "check")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == f"twinbus: there is no settings file: {expected} does not exist\n"
    assert run(capsys, "config", "path") == (0, f"{expected}\n", "twinbus: it does not exist\n")


def test_path_is_the_file_in_use(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    assert run(capsys, "config", "path") == (0, f"{path}\n", "")
    ran = run(capsys, "config", "path", "--config", str(path.parent / "other"))
    assert ran.out == f"{path.parent / 'other'}\n"


FAILED, WRONG_USE = 1, 2
HOST = "contoso.servicebus.windows.net"
KEY = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=Root;SharedAccessKey=s3cret"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "PRIMARY SECONDARY CREDENTIAL TRANSPORT PROXY ENDPOINT".split():
        monkeypatch.delenv(f"TWINBUS_{name}", raising=False)


COMMANDS = {
    "backlog list": ("backlog", "list", "--secondary"),
    "backlog dead-letters": ("backlog", "dead-letters", "--secondary"),
    "dead-letters list": ("backlog", "dead-letters", "list", "--secondary"),
    "syphon drain": ("syphon", "drain", "--primary", KEY, "--secondary"),
    "syphon run": ("syphon", "run", "--primary", KEY, "--secondary"),
    "doctor": ("doctor", KEY),
    "report conservation": ("report", "conservation", "./ledger", "--peek"),
}
"""Each with the secondary as its next word."""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        ((f"sb://{HOST}",), WRONG_USE, f"the secondary namespace: sb://{HOST} needs a credential"),
        (
            (f"sb://{HOST}", "--credential", "eyJ0.s3cret"),
            WRONG_USE,
            "the secondary namespace: a credential is default, managed-identity",
        ),
        (
            (f"sb://{HOST}", "--credential", "file:/no/such/token"),
            FAILED,
            "the file /no/such/token gives no token: No such file or directory",
        ),
        (
            (f"sb://{HOST}", "--credential", "env:NO_SUCH_VARIABLE"),
            FAILED,
            "the variable NO_SUCH_VARIABLE gives no credential: it is not set",
        ),
        (
            (f"sb://{HOST}", "--credential", "default"),
            FAILED,
            f"the credential default needs azure-identity: {install_command('identity')}",
        ),
        (
            (KEY, "--endpoint", "gateway:x"),
            WRONG_USE,
            "namespace: a namespace is HOST or HOST:PORT",
        ),
        ((KEY, "--proxy", "https://me:s3cret@p:1"), WRONG_USE, "namespace: a proxy is http://HOST"),
        ((KEY, "--transport", "tcp"), WRONG_USE, "namespace: the transport is amqp or websocket"),
    ],
)
def test_what_cannot_be_reached_is_one_line_of_every_command_without_a_secret(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    words: tuple[str, ...],
    status: int,
    complaint: str,
) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    ran = run(capsys, *COMMANDS[command], *words)
    (line,) = ran.err.splitlines()
    assert (ran.status, ran.out) == (status, "")
    assert complaint in line
    assert "s3cret" not in line


def test_the_environment_says_how_where_the_text_of_a_side_does_not(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("opaque")
    given = SidesOptions(
        primary=f"sb://{HOST}?transport=amqp",
        secondary=KEY.replace("contoso", "fabrikam"),
        credential=f"file:{token}",
        transport="websocket",
    )
    primary, secondary = given.both
    assert (primary.label, primary.route.websocket) == ("contoso", False)
    assert (secondary.label, secondary.route.websocket) == ("fabrikam", True)
    assert given.given_label == "contoso"


def test_a_label_needs_no_credential_to_be_opened() -> None:
    given = SidesOptions(primary=f"sb://{HOST}", credential="file:/no/such/token")
    assert given.given_label == "contoso"


def test_each_option_has_a_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in AccessOptions.__dataclass_fields__:
        assert f"TWINBUS_{name.upper()}" in run(capsys, "doctor", "--help").out.replace("\n", "")
    monkeypatch.setenv("TWINBUS_SECONDARY", f"sb://{HOST}")
    monkeypatch.setenv("TWINBUS_CREDENTIAL", "file:/no/such/token")
    ran = run(capsys, "backlog", "list")
    assert (ran.status, "/no/such/token" in ran.err) == (FAILED, True)


@pytest.mark.parametrize(
    "queue", ["orders", "other/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/07"]
)
def test_a_drain_refuses_a_queue_that_has_no_backlog_of_its_label(
    capsys: pytest.CaptureFixture[str], queue: str
) -> None:
    sides = "--primary", KEY, "--secondary", KEY.replace("contoso", "contoso-dr")
    ended = run(capsys, "syphon", "drain", *sides, "--label", "contoso", "--queue", queue)
    assert ended.status == WRONG_USE
    assert "--queue must be a backlog queue of contoso" in ended.err
    assert repr(queue) in ended.err
