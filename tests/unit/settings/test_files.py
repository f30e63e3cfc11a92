"""Where the settings file is, and which files are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from twinbus.errors import SettingsError
from twinbus.settings import files
from twinbus.settings.files import SettingsPlace, read_settings, settings_place

STRING = "Endpoint=sb://a.example/;SharedAccessKeyName=Root;SharedAccessKey=s3cret"
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
