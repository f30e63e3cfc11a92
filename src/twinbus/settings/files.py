"""Finds and reads the settings file, and what its values refer to.

Nobody but the user and root may decide what is in the file: it could send a credential to another
host. The working directory is never searched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from twinbus.errors import SettingsError
from twinbus.namespace.access import NamespaceAccess
from twinbus.settings.core.document import SettingsEntry, SettingsFault, parse_settings
from twinbus.settings.core.keys import (
    ANY_CREDENTIAL,
    ENVIRONMENT,
    FILE,
    KEYS,
    at_home,
    holds_secret,
    is_reference,
)

VARIABLE: Final = "TWINBUS_CONFIG"
OPTION: Final = "--config"
BYTES_MAX: Final = 64 * 1024
"""Hundreds of pairs; a larger file is another file."""

OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class SettingsPlace(NamedTuple):
    """Where the settings file is, and what says so."""

    path: Path
    named_by: str
    """--config, TWINBUS_CONFIG, or empty for the user's configuration directory."""


@dataclass(frozen=True, slots=True, repr=False)
class ConfiguredPair:
    """One pair of a settings file that was read; without a repr, which would show its secrets."""

    path: Path
    """Of the file."""
    name: str
    entries: Mapping[str, SettingsEntry]

    def value(self, key: str) -> Any:
        """Return the value of a key as the option takes it; SettingsError if it cannot be read.

        A side that names a variable or a file is replaced by the text that is there.
        """
        value, line = self.entries[key]
        if not isinstance(value, str):
            return value
        text = at_home(value, _home())
        if not (KEYS[key].is_side and is_reference(text)):
            return text
        try:
            return _referred(text)
        except (OSError, SettingsError) as error:
            why = getattr(error, "strerror", None) or error
            where = f"{self.path}:{line}: pair.{self.name}.{key}"
            raise SettingsError(f"{where} is {text}: {why}") from None

    @property
    def label(self) -> str:
        """The label of the primary; SettingsError if the file does not say it."""
        if "label" in self.entries:
            return str(self.value("label"))
        if "primary" not in self.entries:
            raise SettingsError(f"{self.path}: pair {self.name} has neither label nor primary")
        text, line = self.value("primary"), self.entries["primary"].line
        try:
            return NamespaceAccess.parse(text, credential=ANY_CREDENTIAL).label
        except ValueError as error:
            where = f"{self.path}:{line}: the primary of pair {self.name}"
            raise SettingsError(f"{where}: {error}") from None


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file that was read."""

    path: Path
    pairs: Mapping[str, ConfiguredPair]


def settings_place(given: str | None, environment: Mapping[str, str]) -> SettingsPlace | None:
    """Return where the file is or would be; None if it is turned off or there is no home."""
    if given is not None:
        return SettingsPlace(Path(given), OPTION)
    named = environment.get(VARIABLE)
    if named is not None:
        if named.strip() and not os.path.isabs(named):
            # A relative one would be another file in each working directory.
            raise SettingsError(f"{VARIABLE} must be an absolute path")
        return SettingsPlace(Path(named), VARIABLE) if named.strip() else None
    # The XDG base directory specification: a path that is not absolute is ignored.
    directory = environment.get("XDG_CONFIG_HOME", "")
    directory = directory if os.path.isabs(directory) else os.path.join(_home(), ".config")
    if not os.path.isabs(directory):
        return None
    return SettingsPlace(Path(directory, "twinbus", "twinbus.toml"), "")


def no_file_text(place: SettingsPlace | None) -> str:
    """Return the text for a settings file that is needed and not there: where it would be."""
    if place is None:
        return f"there is no settings file: {VARIABLE} is empty, or you have no home directory"
    return f"there is no settings file: {place.path} does not exist"


def read_settings(place: SettingsPlace | None) -> SettingsFile | None:
    """Return the file; None if nobody named it and it is not there; else SettingsError."""
    if place is None:
        return None
    path = place.path
    try:
        text, mode = read_owned(path)
    except FileNotFoundError:
        if not place.named_by:
            return None
        raise SettingsError(f"{path} of {place.named_by} does not exist") from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    try:
        pairs = parse_settings(text)
    except SettingsFault as fault:
        raise SettingsError(f"{path}:{fault.line}: {fault}") from None
    for name, entries in pairs.items():
        secrets = [key for key, entry in entries.items() if holds_secret(key, entry.value)]
        if secrets and mode & OTHERS:
            raise SettingsError(
                f"{path}:{entries[secrets[0]].line}: pair.{name}.{secrets[0]} holds a secret, and"
                " other users may read the file: chmod 600 it, or name the secret by env:NAME or"
                " file:/PATH"
            )
    found = {name: ConfiguredPair(path, name, entries) for name, entries in pairs.items()}
    return SettingsFile(path, found)


def read_owned(path: Path) -> tuple[str, int]:
    """Return the text of a file and its mode; SettingsError if another user could have written it.

    The checks are made on what was opened, so that it cannot be exchanged between them.
    """
    _require_owner(path, path.lstat())
    _require_owner(path.parent, path.parent.stat(), may_be_sticky=True)
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
    with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise SettingsError(f"{path} is not a file")
        _require_owner(path, found)
        content = file.read(BYTES_MAX + 1)
    if len(content) > BYTES_MAX:
        raise SettingsError(f"{path} has more than {BYTES_MAX:,} bytes")
    try:
        return content.decode("utf-8-sig"), found.st_mode
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path}:{line}: not UTF-8") from None


def _require_owner(path: Path, found: os.stat_result, *, may_be_sticky: bool = False) -> None:
    if found.st_uid not in {os.geteuid(), 0}:
        raise SettingsError(f"{path} belongs to another user")
    # Everybody may write to a link, which means nothing.
    is_sticky = may_be_sticky and bool(found.st_mode & stat.S_ISVTX)
    if found.st_mode & OTHERS_WRITE and not is_sticky and not stat.S_ISLNK(found.st_mode):
        raise SettingsError(f"{path} is writable by other users: chmod go-w it")


def _referred(text: str) -> str:
    """Return the text of a variable or of a file."""
    if text.startswith(FILE):
        found = read_owned(Path(text.removeprefix(FILE)))[0].strip()
    else:
        found = os.environ.get(text.removeprefix(ENVIRONMENT), "").strip()
    if not found:
        raise SettingsError("it is not set" if text.startswith(ENVIRONMENT) else "it is empty")
    return found


def _home() -> str:
    return os.path.expanduser("~")
