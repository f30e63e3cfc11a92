"""Where the settings file is, what its text says, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.errors import SettingsError
from twinbus.settings import files
from twinbus.settings.files import (
    SettingsEntry,
    SettingsFault,
    SettingsPlace,
    parse_settings,
    read_settings,
    settings_place,
)
from twinbus.settings.keys import KEYS, at_home, holds_secret

SECRET = "s3cret"
STRING = f"Endpoint=sb://a.example/;SharedAccessKeyName=Root;SharedAccessKey={SECRET}"
PAIR = "[pair.eu]\nprimary = 'env:EU_PRIMARY'\nsecondary = 'file:{path}'\nqueues = 5\ngrace = 600\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A settings file that is fine."""
    found = tmp_path / "twinbus.toml"
    found.write_text(PAIR.format(path=tmp_path / "secondary"))
    found.chmod(0o644)
    return found


def read(path: Path) -> files.SettingsFile:
    found = read_settings(SettingsPlace(path, "--config"))
    assert found is not None
    return found


def refusal(path: Path) -> str:
    with pytest.raises(SettingsError) as raised:
        read(path)
    assert "s3cret" not in str(raised.value)
    return str(raised.value)


def test_the_option_precedes_the_variable_and_that_the_configuration_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    both = {"TWINBUS_CONFIG": "/b", "XDG_CONFIG_HOME": "/c"}
    assert settings_place("a", both) == (Path("a"), "--config")
    assert settings_place(None, both) == (Path("/b"), "TWINBUS_CONFIG")
    assert settings_place(None, {"XDG_CONFIG_HOME": "/c"}) == (Path("/c/twinbus/twinbus.toml"), "")
    assert settings_place(None, {}) == (Path("/home/me/.config/twinbus/twinbus.toml"), "")


def test_the_working_directory_is_never_searched(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.chdir(path.parent)
    (path.parent / "twinbus").mkdir()
    (path.parent / "twinbus" / "twinbus.toml").write_text(path.read_text())
    monkeypatch.setenv("HOME", "/home/me")
    for relative in ("", ".", "twinbus"):
        place = settings_place(None, {"XDG_CONFIG_HOME": relative})
        assert place == (Path("/home/me/.config/twinbus/twinbus.toml"), "")
    monkeypatch.setenv("HOME", ".")
    assert settings_place(None, {}) is None
    with pytest.raises(SettingsError, match="TWINBUS_CONFIG must be an absolute path"):
        settings_place(None, {"TWINBUS_CONFIG": "twinbus.toml"})


def test_an_empty_variable_turns_the_file_off() -> None:
    assert settings_place(None, {"TWINBUS_CONFIG": ""}) is None
    assert read_settings(None) is None


def test_only_a_named_file_must_exist(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "twinbus.toml"
    assert read_settings(SettingsPlace(missing, "")) is None
    assert refusal(missing) == f"{missing} of --config does not exist"


def test_values_are_those_that_options_take(
    monkeypatch: pytest.MonkeyPatch, path: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("EU_PRIMARY", f" {STRING}\n")
    (tmp_path / "secondary").write_text(f"{STRING}\n")
    found = read(path)
    pair = found.pairs["eu"]
    values = {key: pair.value(key) for key in pair.entries}
    assert values == {"primary": STRING, "secondary": STRING, "queues": 5, "grace": "600"}


def test_what_a_side_refers_to_is_named_where_it_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, path: Path, tmp_path: Path
) -> None:
    monkeypatch.delenv("EU_PRIMARY", raising=False)
    found = read(path)
    with pytest.raises(SettingsError, match=r":2: pair\.eu\.primary is env:EU_PRIMARY: it is not"):
        found.pairs["eu"].value("primary")
    with pytest.raises(SettingsError, match=r":3: pair\.eu\.secondary is file:.* No such file"):
        found.pairs["eu"].value("secondary")
    (tmp_path / "secondary").write_text(STRING)
    (tmp_path / "secondary").chmod(0o666)
    with pytest.raises(SettingsError, match="writable by other users") as raised:
        found.pairs["eu"].value("secondary")
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert refusal(path) == f"{path} is writable by other users: chmod go-w it"


def test_a_directory_that_others_may_write_is_refused_unless_it_is_sticky(path: Path) -> None:
    path.parent.chmod(0o777)
    assert refusal(path) == f"{path.parent} is writable by other users: chmod go-w it"
    path.parent.chmod(0o1777)
    assert list(read(path).pairs) == ["eu"]


def give_away(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let the file belong to somebody else, as far as this process can see."""
    if os.geteuid() == 0:
        os.chown(path, 12_345, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: path.lstat().st_uid + 1)


def test_a_file_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    give_away(monkeypatch, path)
    assert refusal(path) == f"{path} belongs to another user"


def test_a_link_is_followed_to_a_file_of_this_user_only(
    monkeypatch: pytest.MonkeyPatch, path: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    assert list(read(link).pairs) == ["eu"]
    path.chmod(0o666)
    assert refusal(link) == f"{link} is writable by other users: chmod go-w it"
    path.chmod(0o600)
    give_away(monkeypatch, path)
    assert refusal(link) == f"{link} belongs to another user"


def test_a_link_of_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch, path: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    give_away(monkeypatch, link)
    assert refusal(link) == f"{link} belongs to another user"


@pytest.mark.parametrize(("key", "value"), [("primary", STRING), ("proxy", "http://me:s3cret@p:1")])
def test_a_secret_needs_a_file_that_only_its_owner_reads(path: Path, key: str, value: str) -> None:
    path.write_text(f"[pair.eu]\nqueues = 3\n{key} = '{value}'\n")
    for mode in (0o640, 0o604):
        path.chmod(mode)
        assert refusal(path).startswith(f"{path}:3: pair.eu.{key} holds a secret")
    path.chmod(0o600)
    assert "s3cret" not in repr(read(path))


def test_what_is_no_small_text_file_is_refused(path: Path, tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}: Is a directory"
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert refusal(tmp_path / "pipe") == f"{tmp_path / 'pipe'} is not a file"
    assert refusal(path / "below").endswith("Not a directory")
    path.write_bytes(b"# fine\n# \xff\n")
    assert refusal(path) == f"{path}:2: not UTF-8"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    assert refusal(path) == f"{path} has more than 65,536 bytes"
    path.write_bytes(b"\xef\xbb\xbf[pair.eu]\r\nqueues = 3\r\n")
    assert list(read(path).pairs) == ["eu"]


def test_a_wrong_file_is_one_line_with_its_place(path: Path) -> None:
    path.write_text("[pair.eu]\nqueues = 's3cret'\n")
    assert refusal(path) == f"{path}:2: pair.eu.queues must be a whole number from 1 to 100"


WHOLE = """\
# Two pairs.
[pair.eu]
primary = "env:EU_PRIMARY"
secondary = 'sb://contoso-dr.servicebus.windows.net'
credential = "managed-identity"
label = "contoso"
transport = "websocket"
proxy = "env:PROXY"
endpoint = "gateway:443"
queues = 20
ledger = "~/ledger"
rate = 500
lease = true
strict = false
grace = "6h"
ttl-policy = "remaining"
poll = 900
detection-window = "10min"
twins = ["orders", "billing-*"]
twins-with-sessions = true
board = false
quorum = 3

[pair.eu.gateway]
address = "contoso:5672"
host = "0.0.0.0"
failover-interval = "10s"
ping-interval = 30
attempt-timeout = "5s"
patience = "50s"
divert-on = ["disabled", "full"]
syphon = false
key-file = "~/gateway-key"
rule-file = "/etc/twinbus/rules"
tokens = "/etc/twinbus/tokens"
require-token = false
tls-cert = "/etc/twinbus/chain.pem"
tls-key = "/etc/twinbus/key.pem"
require-tls = true
metrics-token-file = "/etc/twinbus/metrics-token"

[pair.us]
secondary = "file:/run/secrets/us"
"""


def fault(text: str) -> tuple[int, str]:
    """The line and the text of what is wrong."""
    with pytest.raises(SettingsFault) as raised:
        parse_settings(text)
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)
    return raised.value.line, str(raised.value)


def test_every_key_is_taken_with_its_line() -> None:
    pairs = parse_settings(WHOLE)
    assert list(pairs) == ["eu", "us"]
    assert pairs["eu"].keys() == KEYS.keys()
    assert pairs["eu"]["queues"] == (20, 10)
    assert pairs["eu"]["twins"] == (["orders", "billing-*"], 19)
    assert pairs["eu"]["gateway.patience"] == ("50s", 30)
    assert pairs["us"]["secondary"] == ("file:/run/secrets/us", 43)
    assert not any(holds_secret(key, entry.value) for key, entry in pairs["eu"].items())


def test_an_empty_file_has_no_pair() -> None:
    assert parse_settings("") == parse_settings("# later\n") == {}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("primry = 'env:A'", "pair.eu.primry is not a known key; did you mean primary?"),
        ("ttl_policy = 'full'", "pair.eu.ttl_policy is not a known key; did you mean ttl-policy?"),
        ("zzz = 1", "pair.eu.zzz is not a known key; there are primary, secondary, label"),
        (f"'Key={SECRET}' = 1", "pair.eu.a key is not a known key"),
        ("queues = '10'", "pair.eu.queues must be a whole number from 1 to 100"),
        ("queues = true", "pair.eu.queues must be a whole number"),
        ("queues = 0", "pair.eu.queues must be a whole number"),
        ("queues = 10.0", "pair.eu.queues must be a whole number"),
        ("twins = 'orders'", "pair.eu.twins must be a list of names and patterns"),
        ("twins = []", "pair.eu.twins must be a list of names and patterns"),
        ("twins = ['']", "pair.eu.twins must be a list of names and patterns"),
        ("lease = 'yes'", "pair.eu.lease must be true or false"),
        ("twins-with-sessions = 1", "pair.eu.twins-with-sessions must be true or false"),
        ("ttl-policy = []", "pair.eu.ttl-policy must be full or remaining"),
        ("grace = '31d'", "pair.eu.grace must be a duration up to 30d"),
        ("grace = inf", "pair.eu.grace must be a duration"),
        ("poll = 0.5", "pair.eu.poll must be a duration from 1s to 15min"),
        ("rate = -1", "pair.eu.rate must be standard, or a rate"),
        ("rate = 2026-11-17", "pair.eu.rate must be standard, or a rate"),
        ("ledger = './ledger'", "pair.eu.ledger must be a path that starts with / or ~/"),
        ('ledger = "/a\\u0000b"', "pair.eu.ledger must be a path"),
        ("primary = ''", "pair.eu.primary must be env:NAME, file:/PATH, sb://HOST"),
        ("primary = 'env:'", "pair.eu.primary must be"),
        ("primary = 'file:token'", "pair.eu.primary must be"),
        (f"primary = 'SharedAccessKey={SECRET}'", "pair.eu.primary must be"),
        (f"primary = 'sb://host:{SECRET}'", "pair.eu.primary must be"),
        (f"primary = ['{STRING}']", "pair.eu.primary must be"),
        (f"label = '{STRING}'", "pair.eu.label must be 1 to 200 letters"),
        (f"credential = '{SECRET}'", "pair.eu.credential must be default, managed-identity"),
        (f"transport = '{SECRET}'", "pair.eu.transport must be amqp or websocket"),
        (f"proxy = 'https://me:{SECRET}@p:1'", "pair.eu.proxy must be http://HOST:PORT"),
        (f"endpoint = 'h:{SECRET}'", "pair.eu.endpoint must be HOST or HOST:PORT"),
        (f"grace = '{SECRET}'", "pair.eu.grace must be a duration"),
        ("x = {y = 1}", "pair.eu.x is not a known key"),
        ("secondary = 'embedded:data'", "pair.eu.secondary must be env:NAME, file:/PATH"),
        ("primary = 'embedded:/data'", "pair.eu.primary must be env:NAME, file:/PATH"),
        ("gateway = 'contoso:5672'", "pair.eu.gateway must be a table: [pair.eu.gateway]"),
        ("gateway.address = 'contoso'", "pair.eu.gateway.address must be NAME:PORT"),
        (
            "gateway.adress = 'a:1'",
            "pair.eu.gateway.adress is not a known key; did you mean address?",
        ),
        ("gateway.zzz = 1", "pair.eu.gateway.zzz is not a known key; there are address, host"),
        (f"gateway.'{STRING}' = 1", "pair.eu.gateway.a key is not a known key"),
        ("'gateway.patience' = '1s'", "pair.eu.a key is not a known key"),
        ("gateway = {host = 3}", "pair.eu.gateway.host must be a host name"),
        ("gateway.patience = '2h'", "pair.eu.gateway.patience must be a duration from 1s to 1h"),
        (
            "gateway.divert-on = ['busy']",
            "pair.eu.gateway.divert-on must be a list of disabled, full, throttled",
        ),
        ("gateway.divert-on = [[]]", "pair.eu.gateway.divert-on must be a list of disabled"),
        ("gateway.key-file = 'key'", "pair.eu.gateway.key-file must be a path"),
        ("gateway.syphon = 'no'", "pair.eu.gateway.syphon must be true or false"),
        (f"primary = {STRING}", "not TOML: Invalid value"),
        (f"primary = '{SECRET}", "not TOML: "),
        ("queues = 1\nqueues = 2", "not TOML: Cannot overwrite a value"),
        ("[pair.eu]", "not TOML: Cannot declare"),
    ],
)
def test_a_wrong_line_is_named_with_its_key_and_without_its_value(line: str, said: str) -> None:
    number, text = fault(f"# one\n[pair.eu]\n\n{line}\n")
    assert text.startswith(said)
    assert number == 4 + line.count("\n")


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("\n[pairs.eu]\nprimary = 'env:A'", 2, "pairs is not a known key; did you mean pair?"),
        ("primary = 'env:A'", 1, "primary belongs below [pair.NAME]"),
        ("pair = 3", 1, "pair must be tables: [pair.NAME]"),
        ("\n[[pair]]\nprimary = 'env:A'", 2, "pair must be tables"),
        ("[[pair.eu]]\nprimary = 'env:A'", 1, "pair.eu must be a table"),
        ("[pair]\neu = 'env:A'", 2, "pair.eu must be a table"),
        (f"[pair.'{STRING}']", 1, "the name of a pair must be 1 to 40 letters"),
        ("[pair.eu.more]\nx = 1", 1, "pair.eu.more is not a known key"),
        ("pair.eu.queues = 0", 1, "pair.eu.queues must be"),
        ("\npair = {eu = {queues = 0}}", 2, "pair.eu.queues must be"),
        ("[pair.eu]\nlabel = '''\n", 2, "not TOML: "),
    ],
)
def test_a_wrong_shape_is_named_with_its_line(text: str, line: int, said: str) -> None:
    number, found = fault(text)
    assert (number, found[: len(said)]) == (line, said)


def test_a_value_that_is_too_deep_or_long_is_refused() -> None:
    deep = "x = " + "[" * 5_000
    assert fault(deep) == (1, "not TOML that can be read: a value is too deep or long")
    digits = "[pair.eu]\nqueues = " + "9" * 5_000
    assert fault(digits) == (1, "not TOML that can be read: a value is too deep or long")


@pytest.mark.parametrize(
    ("value", "is_secret"),
    [
        (f"primary = '{STRING}'", True),
        ("primary = 'env:A'", False),
        ("primary = 'sb://h?credential=default'", False),
        ("primary = 'sb://h?proxy=http%3A%2F%2Fme%3Apw%40p%3A1'", True),
        ("proxy = 'http://me:pw@p:1'", True),
        ("proxy = 'http://p:1'", False),
        ("secondary = 'embedded:/data'", False),
    ],
)
def test_a_secret_is_known_by_its_value(value: str, is_secret: bool) -> None:
    (pair,) = parse_settings(f"[pair.eu]\n{value}").values()
    ((key, entry),) = pair.items()
    assert holds_secret(key, entry.value) is is_secret


def test_a_home_is_put_in_front_of_paths_only() -> None:
    assert at_home("~/ledger", "/home/me") == "/home/me/ledger"
    assert at_home("file:~/token", "/home/me") == "file:/home/me/token"
    assert at_home("embedded:~/data", "/home/me") == "embedded:/home/me/data"
    assert at_home("/a~/b", "/home/me") == "/a~/b"


def test_the_page_about_the_file_names_every_key_and_its_example_is_valid() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "options.md").read_text()
    assert list(parse_settings(page.partition("```toml\n")[2].partition("```")[0])) == ["eu", "us"]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert KEYS.keys() <= {name.strip(" `") for row in rows for name in row.split(",")}


WORDS = "[pair.eu] [pair.us] primary='env:A' queues= 3 ' [ ] { } = . pair eu # é lease=true 9999"
PIECES = st.sampled_from([*WORDS.split(), '"""', "\n", "\r\n", "\x00"])


def outcome(text: str) -> tuple[int, str] | dict[str, dict[str, SettingsEntry]]:
    try:
        return parse_settings(text)
    except SettingsFault as wrong:
        return wrong.line, str(wrong)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_text_is_pairs_or_one_line(text: str) -> None:
    lines = text.split("\n")
    match outcome(text):
        case (int(line), str(said)):
            assert 1 <= line <= len(lines)
            assert "\n" not in said
        case pairs:
            assert isinstance(pairs, dict)
            for pair in pairs.values():
                assert all(key in lines[entry.line - 1] for key, entry in pair.items())
