"""The commands of `twinbus config`: where the settings file is, and what a pair gets from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple

import typer

from twinbus.console import ATTENTION, COULD_NOT
from twinbus.console.declaration import CONFIG_TEXT, command, command_group, option, require_pair
from twinbus.console.options import QueuesOption, RecordingOption, SidesOptions
from twinbus.console.output import UNKNOWN, Output, OutputOption, WrongUse, paint, show, table_lines
from twinbus.errors import SettingsError
from twinbus.namespace.access import NamespaceAccess
from twinbus.namespace.address import HttpProxy
from twinbus.settings.files import (
    ConfiguredPair,
    SettingsFile,
    no_file_text,
    read_settings,
    settings_place,
)
from twinbus.settings.keys import EMBEDDED, ENVIRONMENT, KEYS, is_reference
from twinbus.wording import visible

app = command_group("Check the settings file, and say where it is.")

ConfigOption = Annotated[str | None, option("FILE", CONFIG_TEXT)]


class GivenValue(NamedTuple):
    """A value of the command line or the environment, and the name of its option or variable."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class ShownValue:
    key: str
    value: str
    origin: str
    meaning: str
    problem: str | None = None
    """Why the value cannot be used here."""


@command(
    app,
    "twinbus config check --pair eu",
    exit_status="0 all is well, 1 there is no settings file, 2 the file is wrong (one line names"
    " the key and the line), 3 a value cannot be used here.",
    takes_pair=False,
)
def check(
    context: typer.Context,
    sides: SidesOptions,
    queues: QueuesOption = 10,
    ledger: RecordingOption = None,
    pair: Annotated[str | None, option("NAME", "This pair only.")] = None,
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show each value of a pair, its meaning and where it is from.

    A value comes from an option, else from its environment variable, else from the settings file.
    Secrets are not shown. Nothing is connected to.
    """
    place = settings_place(config, os.environ)
    file = read_settings(place)
    if pair is not None:
        chosen = [require_pair(file, pair, config)]
    elif file is None:
        print(f"twinbus: {no_file_text(place)}", file=sys.stderr)
        return COULD_NOT
    else:
        chosen = list(file.pairs.values())
    assert file is not None
    given = _given(context, {**vars(sides), "queues": queues, "ledger": ledger})
    found = {pair.name: list(_values(pair, given)) for pair in chosen}
    document = {
        "file": str(file.path),
        "pairs": {of: [asdict(value) for value in values] for of, values in found.items()},
    }
    show(output, document, _lines(file, found))
    has_problem = any(value.problem for values in found.values() for value in values)
    return ATTENTION if has_problem else 0


@command(app, "twinbus config path", takes_pair=False)
def path(config: ConfigOption = None) -> int:
    """Print where the settings file is, or where it would be."""
    place = settings_place(config, os.environ)
    if place is None:
        raise WrongUse(no_file_text(place))
    print(place.path)
    if not place.path.exists():
        print("twinbus: it does not exist", file=sys.stderr)
    return 0


def _given(context: typer.Context, values: Mapping[str, Any]) -> dict[str, GivenValue]:
    """Return the values of the command line and the environment, by key."""
    given = {}
    for key, value in values.items():
        source = context.get_parameter_source(key)
        if source is not None and source.name in {"COMMANDLINE", "ENVIRONMENT"}:
            is_option = source.name == "COMMANDLINE"
            given[key] = GivenValue(value, f"--{key}" if is_option else str(KEYS[key].variable))
    return given


def _lines(file: SettingsFile, found: Mapping[str, list[ShownValue]]) -> Iterator[str]:
    yield visible(file.path)
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


def _values(pair: ConfiguredPair, given: Mapping[str, GivenValue]) -> Iterator[ShownValue]:
    credential = _credential(pair, given)
    for key in KEYS:
        if key in given:
            yield _shown(key, given[key], credential)
        elif key in pair.entries:
            raw, line = pair.entries[key]
            origin = f"{pair.path.name}:{line}"
            if KEYS[key].is_side and is_reference(raw):
                origin = f"{origin}, {raw}"
            try:
                found = GivenValue(pair.value(key), origin)
            except SettingsError as error:
                yield ShownValue(key, UNKNOWN, origin, KEYS[key].help, str(error))
            else:
                yield _shown(key, found, credential)


def _credential(pair: ConfiguredPair, given: Mapping[str, GivenValue]) -> str:
    if "credential" in given:
        return str(given["credential"].value)
    return str(pair.value("credential")) if "credential" in pair.entries else ""


def _shown(key: str, found: GivenValue, credential: str) -> ShownValue:
    """Return the value without its secrets; a wrong one is not shown, for it may be a secret."""
    about, text, problem = KEYS[key], UNKNOWN, None
    try:
        about.kind.read(found.value)
    except (TypeError, ValueError):
        problem = f"it must be {about.kind.form}"
    else:
        try:
            text = _text(key, found.value, credential)
        except ValueError as error:
            problem = str(error)
    return ShownValue(key, text, found.origin, about.help, problem)


def _text(key: str, value: Any, credential: str) -> str:
    if KEYS[key].is_side and value.startswith(EMBEDDED):
        return str(value)
    if KEYS[key].is_side:
        return NamespaceAccess.parse(value, credential=credential).text
    if key == "proxy" and not value.startswith(ENVIRONMENT):
        proxy = HttpProxy.parse(value)
        return f"{proxy.url}, login hidden" if proxy.user else proxy.url
    if isinstance(value, list):
        return ", ".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
