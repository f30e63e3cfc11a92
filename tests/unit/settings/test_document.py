"""The text of a settings file: its pairs, the lines of its keys, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.settings.files import SettingsEntry, SettingsFault, parse_settings
from twinbus.settings.keys import KEYS, at_home, holds_secret

SECRET = "s3cret"
STRING = f"Endpoint=sb://a.example/;SharedAccessKeyName=Root;SharedAccessKey={SECRET}"

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

[pair.eu.gateway]
address = "contoso:5672"
host = "0.0.0.0"
failover-interval = "10s"
ping-interval = 30
attempt-timeout = "5s"
patience = "50s"
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
    assert pairs["eu"]["gateway.patience"] == ("50s", 26)
    assert pairs["us"]["secondary"] == ("file:/run/secrets/us", 38)
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
        ("lease = 'yes'", "pair.eu.lease must be true or false"),
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
