"""`twinbus config check` and `twinbus config path`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from twinbus.console.config.pair_defaults import require_pair
from twinbus.console.terminal.output import ATTENTION, COULD_NOT, Output, WrongUse, show
from twinbus.console.terminal.table import UNKNOWN, paint, table_lines, visible
from twinbus.errors import SettingsError
from twinbus.namespace.access import NamespaceAccess
from twinbus.namespace.route import HttpProxy
from twinbus.settings.core.document import PairSettings
from twinbus.settings.core.keys import EMBEDDED, ENVIRONMENT, KEYS, is_reference
from twinbus.settings.files import SettingsFile, no_file_text, read_settings, settings_place


class GivenValue(NamedTuple):
    """A value of the command line or the environment, and the name of its option or variable."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A value as it may be shown."""

    key: str
    value: str
    origin: str
    meaning: str
    problem: str | None = None
    """Why the value cannot be used here."""


def check_pairs(
    given: Mapping[str, GivenValue], name: str | None, config: str | None, output: Output
) -> int:
    """Print the values of one pair or of all; return the exit status."""
    place = settings_place(config, os.environ)
    file = read_settings(place)
    if name is not None:
        chosen = [require_pair(file, name, config).pair]
    elif file is None:
        print(f"twinbus: {no_file_text(place)}", file=sys.stderr)
        return COULD_NOT
    else:
        chosen = list(file.pairs.values())
    assert file is not None
    found = {pair.name: list(_values(file, pair, given)) for pair in chosen}
    document = {
        "file": str(file.place.path),
        "pairs": {of: [asdict(value) for value in values] for of, values in found.items()},
    }
    show(output, document, _lines(file, found))
    has_problem = any(value.problem for values in found.values() for value in values)
    return ATTENTION if has_problem else 0


def show_path(config: str | None) -> int:
    """Print the path of the settings file; return the exit status."""
    place = settings_place(config, os.environ)
    if place is None:
        raise WrongUse(no_file_text(place))
    print(place.path)
    if not place.path.exists():
        print("twinbus: it does not exist", file=sys.stderr)
    return 0


def _lines(file: SettingsFile, found: Mapping[str, list[ShownValue]]) -> Iterator[str]:
    yield visible(file.place.path)
    if not found:
        yield "no pair; a pair is a table [pair.NAME]"
    for name, values in found.items():
        yield ""
        yield paint(f"pair {name}", "bold")
        rows = [(one.key, one.value, one.origin, one.meaning) for one in values]
        yield from table_lines(["KEY", "VALUE", "FROM", "MEANING"], rows)
        for one in values:
            if one.problem:
                yield paint(f"! {one.key}: {visible(one.problem)}", "bold", "red")


def _values(
    file: SettingsFile, pair: PairSettings, given: Mapping[str, GivenValue]
) -> Iterator[ShownValue]:
    credential = _credential(file, pair, given)
    for key in KEYS:
        if key in given:
            yield _shown(key, given[key], credential)
        elif key in pair.entries:
            raw, line = pair.entries[key]
            origin = f"{file.place.path.name}:{line}"
            if KEYS[key].is_side and is_reference(raw):
                origin = f"{origin}, {raw}"
            try:
                found = GivenValue(file.value(pair, key), origin)
            except SettingsError as error:
                yield ShownValue(key, UNKNOWN, origin, KEYS[key].meaning, str(error))
            else:
                yield _shown(key, found, credential)


def _credential(file: SettingsFile, pair: PairSettings, given: Mapping[str, GivenValue]) -> str:
    if "credential" in given:
        return str(given["credential"].value)
    return str(file.value(pair, "credential")) if "credential" in pair.entries else ""


def _shown(key: str, found: GivenValue, credential: str) -> ShownValue:
    """Return the value without its secrets; a wrong one is not shown, for it may be a secret."""
    about = KEYS[key]
    problem = None if about.accepts(found.value) else f"it must be {about.form}"
    text = UNKNOWN
    try:
        text = _text(key, found.value, credential) if problem is None else UNKNOWN
    except ValueError as error:
        problem = str(error)
    return ShownValue(key, text, found.origin, about.meaning, problem)


def _text(key: str, value: Any, credential: str) -> str:
    if KEYS[key].is_side and value.startswith(EMBEDDED):
        return str(value)
    if KEYS[key].is_side:
        return NamespaceAccess.parse(value, credential=credential).text
    if key == "proxy" and not value.startswith(ENVIRONMENT):
        proxy = HttpProxy.parse(value)
        return f"{proxy.url}, login hidden" if proxy.user else proxy.url
    return str(value).lower() if isinstance(value, bool) else str(value)
