"""Which namespaces a broker URL means: by name, by options, by the environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

import twinbus.kombu
from twinbus.errors import SettingsError
from twinbus.kombu.process_pair import broker_settings

DOCUMENT = Path(__file__).parents[2] / "docs" / "celery.md"
SIDES = {
    "primary": "sb://contoso.servicebus.windows.net?credential=default",
    "secondary": "sb://contoso-dr.servicebus.windows.net?credential=managed-identity",
}
KEY = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=c2VjcmV0"


def test_a_name_in_the_url_is_a_pair_of_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "twinbus.toml"
    file.write_text(
        '[pair.eu]\nprimary = "env:EU_PRIMARY"\nlabel = "shop"\nqueues = 3\n'
        'secondary = "sb://contoso-dr.servicebus.windows.net"\ncredential = "default"\n'
        '[pair.half]\nprimary = "env:EU_PRIMARY"\n'
    )
    monkeypatch.setenv("TWINBUS_CONFIG", str(file))
    monkeypatch.setenv("EU_PRIMARY", KEY)
    found = broker_settings("twinbus://eu", {"failover_interval": 10})
    assert (found.primary.host, found.primary.label) == ("contoso.servicebus.windows.net", "shop")
    assert found.secondary.credential == "default"
    assert (found.options.backlog_queue_count, found.options.failover_interval) == (3, 10)
    # The call lasts long enough to see the failover.
    assert found.send_timeout_s == 10 + 3 * 5
    assert broker_settings("twinbus://eu/", {"backlog_queue_count": 5}).options == (
        broker_settings("twinbus://eu", {"backlog_queue_count": 5}).options
    )
    with pytest.raises(SettingsError, match="pair half has no secondary"):
        broker_settings("twinbus://half", {})
    with pytest.raises(SettingsError, match=r"'us': it is not in .*twinbus\.toml"):
        broker_settings("twinbus://us", {})
    monkeypatch.delenv("TWINBUS_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match=f"'us': .* {tmp_path}/twinbus/twinbus.toml does not"):
        broker_settings("twinbus://us", {})


def test_the_example_of_the_docs_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = dict(re.findall(r"```(toml|python)\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[:2])
    strings = re.findall(r"export (EU_\w+)='(.*)'", DOCUMENT.read_text())
    (tmp_path / "twinbus").mkdir()
    (tmp_path / "twinbus" / "twinbus.toml").write_text(blocks["toml"])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TWINBUS_CONFIG", raising=False)
    for name, text in strings:
        monkeypatch.setenv(name, text)
    names: dict[str, Any] = {}
    exec(blocks["python"], names)
    app = names["app"]
    found = broker_settings(app.conf.broker_url, app.conf.broker_transport_options)
    assert (found.primary.label, found.primary.port, found.secondary.port) == (
        "contoso",
        5692,
        5693,
    )
    assert found.options.failover_interval == 5
    assert names["bill"].name in app.tasks


def test_without_a_name_the_options_and_then_the_environment_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TWINBUS_PRIMARY", KEY)
    monkeypatch.delenv("TWINBUS_SECONDARY", raising=False)
    with pytest.raises(SettingsError, match="TWINBUS_SECONDARY"):
        broker_settings("twinbus://", {})
    monkeypatch.setenv("TWINBUS_SECONDARY", SIDES["secondary"])
    assert broker_settings("twinbus://", {}).primary.connection_string == KEY
    given = broker_settings("twinbus://", {**SIDES, "send_timeout": 7, "create_queues": False})
    assert given.primary.credential == "default"
    assert (given.send_timeout_s, given.create_queues) == (7.0, False)
    with pytest.raises(ValueError, match="failover_interval must be from"):
        broker_settings("twinbus://", {**SIDES, "failover_interval": -1})


def test_equal_settings_share_a_pair_and_others_do_not() -> None:
    key = broker_settings("twinbus://", SIDES).key
    assert broker_settings("twinbus://", {**SIDES, "polling_interval": 3}).key == key
    assert broker_settings("twinbus://", {**SIDES, "retry_total": 1}).key != key


def test_the_url_for_people_has_no_secret() -> None:
    connection = Connection("twinbus://", transport_options={**SIDES, "primary": KEY})
    assert connection.get_transport_cls() is twinbus.kombu.Transport
    assert "c2VjcmV0" not in f"{connection.as_uri(include_password=True)} {connection!r}"
    assert connection.clone().as_uri() == "twinbus://"
