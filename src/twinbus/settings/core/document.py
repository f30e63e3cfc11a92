"""The text of a settings file as named pairs, each value with its line. Pure.

[pair.eu]
primary = "env:EU_PRIMARY"
secondary = "sb://contoso-dr.servicebus.windows.net"
credential = "managed-identity"
[pair.eu.gateway]
address = "contoso:5672"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from twinbus.settings.core.keys import KEYS

PAIR: Final = "pair"
GATEWAY: Final = "gateway"
"""The one table below that of a pair; its keys are `gateway.address` and so on."""
NAME_FORM: Final = "1 to 40 letters, digits, '-' or '_'"

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}", re.ASCII)
_PLACE: Final = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")

_PATH: Final = r"""(?:"[^"]*"|'[^']*'|[\w.\s-])+"""
_STATEMENT: Final = re.compile(rf"(\[+)({_PATH})\]|({_PATH})=")
"""A line that begins a table, or that gives a key its value."""


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
    """The keys of a pair's own table, or of that of its gateway."""
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
