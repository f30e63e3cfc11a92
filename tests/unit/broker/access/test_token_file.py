"""Bearer tokens from a file: its format, and what happens when it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from twinbus.broker.access.token_file import TokenFile, parse_tokens
from twinbus.broker.host import parse_token
from twinbus.broker.sas import NEVER_S
from twinbus.errors import BrokerStartError

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
        ("app secret Sent never", "'Sent' are no rights"),
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
