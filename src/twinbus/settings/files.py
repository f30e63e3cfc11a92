"""Finds the settings file, reads its named pairs, and what their values refer to.

    [pair.eu]
    primary = "env:EU_PRIMARY"
    secondary = "sb://contoso-dr.servicebus.windows.net"
    credential = "managed-identity"
    [pair.eu.gateway]
    address = "contoso:5672"

Nobody but the user and root may decide what is in the file: it could send a credential to another
host. The working directory is never searched.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from twinbus.errors import SettingsError
from twinbus.namespace.access import NamespaceAccess
from twinbus.settings.keys import (
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

PAIR: Final = "pair"
GATEWAY: Final = "gateway"
"""The one table below that of a pair; its keys are `gateway.address` and so on."""
NAME_FORM: Final = "1 to 40 letters, digits, '-' or '_'"

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}", re.ASCII)
_PLACE: Final = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")

_PATH: Final = r"""(?:"[^"]*"|'[^']*'|[\w.\s-])+"""
_STATEMENT: Final = re.compile(rf"(\[+)({_PATH})\]|({_PATH})=")
"""A line that begins a table, or that gives a key its value."""


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
    """Return the file; None if it was not named and is not there; else SettingsError."""
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
    if text.startswith(FILE):
        found = read_owned(Path(text.removeprefix(FILE)))[0].strip()
    else:
        found = os.environ.get(text.removeprefix(ENVIRONMENT), "").strip()
    if not found:
        raise SettingsError("it is not set" if text.startswith(ENVIRONMENT) else "it is empty")
    return found


def _home() -> str:
    return os.path.expanduser("~")


class SettingsFault(ValueError):
    """The text is wrong at a line; no value of it is repeated."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line = line


class SettingsEntry(NamedTuple):
    """A value as its option takes it, and the line of its key."""

    value: Any
    line: int


def parse_settings(text: str) -> dict[str, dict[str, SettingsEntry]]:
    """Return the values of each pair, in the order of the file; SettingsFault if one is wrong."""
    document, lines = _parsed(text), _KeyLines(text)
    for key in document:
        if key != PAIR:
            belongs = "belongs below [pair.NAME]" if key in KEYS else _unknown(key, [PAIR])
            raise SettingsFault(lines.of(key), f"{_shown(key)} {belongs}")
    pairs = document.get(PAIR, {})
    if not isinstance(pairs, dict):
        raise SettingsFault(lines.of(PAIR), "pair must be tables: [pair.NAME]")
    return {name: _pair(name, table, lines) for name, table in pairs.items()}


class _KeyLines:
    """The lines of keys, for people: found by their text, since `tomllib` does not tell them."""

    def __init__(self, text: str) -> None:
        self._lines: dict[str, int] = {}
        table = ""
        for number, line in enumerate(text.split("\n"), 1):
            if found := _STATEMENT.match(line.strip()):
                path = self._bare(found[2] or f"{table}{found[3]}")
                table = f"{path}." if found[1] else table
                for end in [*(at for at, char in enumerate(path) if char == "."), len(path)]:
                    self._lines.setdefault(path[:end], number)

    def of(self, *path: str) -> int:
        """Return the line of a key, else that of the table that it is in."""
        for length in range(len(path), 0, -1):
            if line := self._lines.get(self._bare(".".join(path[:length]))):
                return line
        return 1

    @staticmethod
    def _bare(path: str) -> str:
        return re.sub(r"[\s\"']", "", path)


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line = (place and place[1]) or text.rstrip().count("\n") + 1
        raise SettingsFault(int(line), f"not TOML: {_PLACE.sub('', str(error))}") from None
    except (RecursionError, ValueError):
        # Brackets in brackets, or a number of thousands of digits.
        raise SettingsFault(1, "not TOML that can be read: a value is too deep or long") from None


def _pair(name: str, table: object, lines: _KeyLines) -> dict[str, SettingsEntry]:
    line = lines.of(PAIR, name)
    if not _NAME.fullmatch(name):
        raise SettingsFault(line, f"the name of a pair must be {NAME_FORM}")
    if not isinstance(table, dict):
        raise SettingsFault(line, f"pair.{name} must be a table: [pair.{name}]")
    entries = {}
    for path, value in _values(table):
        line = lines.of(PAIR, name, *path)
        key = ".".join(path)
        if key == GATEWAY:
            raise SettingsFault(line, f"pair.{name}.{key} must be a table: [pair.{name}.{key}]")
        if key not in KEYS or "." in path[-1]:
            shown = ".".join((PAIR, name, *path[:-1], _shown(path[-1])))
            raise SettingsFault(line, f"{shown} {_unknown(path[-1], _known(path[:-1]))}")
        kind = KEYS[key].kind
        try:
            entries[key] = SettingsEntry(kind.read(value), line)
        except (TypeError, ValueError):
            raise SettingsFault(line, f"pair.{name}.{key} must be {kind.form}") from None
    return entries


def _values(table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values of a pair, and those of its gateway in its table."""
    for key, value in table.items():
        if key == GATEWAY and isinstance(value, dict):
            yield from (((key, below), one) for below, one in value.items())
        else:
            yield (key,), value


def _known(table: tuple[str, ...]) -> list[str]:
    if table:
        return [key.removeprefix(f"{GATEWAY}.") for key in KEYS if key.startswith(f"{GATEWAY}.")]
    return [*(key for key in KEYS if "." not in key), GATEWAY]


def _unknown(key: str, known: list[str]) -> str:
    close = get_close_matches(key.lower().replace("_", "-"), known, n=1)
    return f"is not a known key; did you mean {close[0]}?" if close else (
        f"is not a known key; there are {', '.join(known)}"
    )  # fmt: skip


def _shown(key: str) -> str:
    """Return the key, unless it may be a secret that lost its name."""
    return key if _NAME.fullmatch(key) else "a key"
