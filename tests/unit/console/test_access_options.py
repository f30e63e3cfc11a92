"""How a command reaches its namespaces: options, environment, and one line for each fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.unit.console.commands import run
from twinbus.console.options import AccessOptions, SidesOptions
from twinbus.extras import install_command

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
