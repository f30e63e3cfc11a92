"""How a command joins the command line: its options, its exit status, the end of its `--help`.

A value comes from the option, else from its environment variable, else from a pair of the settings
file.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from functools import cached_property, wraps
from inspect import Parameter
from typing import Annotated, Any, Final, ParamSpec, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from twinbus.console import STOPPED
from twinbus.console.output import WrongUse
from twinbus.settings.files import (
    VARIABLE,
    ConfiguredPair,
    SettingsFile,
    no_file_text,
    read_settings,
    settings_place,
)
from twinbus.settings.keys import KEYS

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

EXAMPLE: Final = "\b\nExample: "
"""The beginning tells the help formatter not to rewrap the lines of the paragraph."""


def command_group(help_text: str, *, default: str | None = None) -> typer.Typer:
    """Return a group of commands; without a command it runs `default`, or shows its help."""

    class Group(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if default and args[:1] != ["--help"] and (not args or args[0].startswith("-")):
                args = [default, *args]
            return super().parse_args(ctx, args)

    return typer.Typer(help=help_text, cls=Group, no_args_is_help=True, rich_markup_mode=None)


def command(
    app: typer.Typer,
    example: str,
    *,
    name: str | None = None,
    exit_status: str = "",
    note: str = "",
    cls: type[TyperCommand] | None = None,
    takes_pair: bool = True,
) -> Callable[[F], F]:
    """Add a function or coroutine function that returns an exit status to the command line.

    A parameter that is a dataclass stands for one option for each of its fields. A command with
    parameters that the settings file can set also gets --pair and --config, unless `takes_pair` is
    false. A function with its own parameter `pair` gets there the label of a configured pair.
    """

    def add(function: F) -> F:
        hints = get_type_hints(function, include_extras=True)
        groups: dict[str, Any] = {of: one for of, one in hints.items() if is_dataclass(one)}

        is_coroutine = inspect.iscoroutinefunction(function)
        work = runs_to_its_end(function) if is_coroutine else function
        options = list(_options(function, hints))
        keys = keys_of(options) if takes_pair else {}
        is_label = takes_pair and "pair" in hints
        if keys or is_label:
            options += settings_parameters(keys, is_label=is_label)

        @wraps(function)
        def run(**given: Any) -> None:
            if keys or is_label:
                config, pair = given.pop("config"), given.pop("pair")
                if is_label:
                    given["pair"] = pair and running_name(pair, config)
            made = {
                of: group(**{field.name: given.pop(field.name) for field in fields(group)})
                for of, group in groups.items()
            }
            raise typer.Exit(work(**made, **given))

        run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        run.__annotations__ = {option.name: option.annotation for option in options}
        ends = [f"Exit status: {exit_status}" if exit_status else "", note, EXAMPLE + example]
        app.command(name, epilog="\n\n".join(filter(None, ends)), cls=cls)(run)
        return function

    return add


def runs_to_its_end(work: Callable[P, Coroutine[Any, Any, int]]) -> Callable[P, int]:
    """Run the coroutine of a command to its end; Ctrl-C and SIGTERM cancel it first."""

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        # Imported late: help needs none of it.
        import asyncio
        import logging
        import signal

        from twinbus.loops import fast_loop

        # The command reports errors itself, so the logs of the SDK and the syphon are not shown.
        logging.getLogger().addHandler(logging.NullHandler())

        async def main() -> int:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
            return await work(*args, **kwargs)

        try:
            with asyncio.Runner(loop_factory=fast_loop()) as runner:
                return runner.run(main())
        except (KeyboardInterrupt, asyncio.CancelledError):
            print("twinbus: stopped", file=sys.stderr)
            return STOPPED

    return run


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Return an option that takes a value; its name is the parameter's unless it is given."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=text, **more)


def setting(key: str, *names: str, of: Callable[..., Any] = typer.Option, **more: Any) -> Any:
    """Return the option that a key of the settings file stands for, with its help and variable.

    `more` replaces parts of it; `of` is typer.Argument for a parameter given by its position.
    """
    about = KEYS[key]
    parts = {"metavar": about.kind.metavar, "help": about.help, "envvar": about.variable}
    info = of(*names, **{**parts, **more})
    info.settings_key = key
    return info


def flag(name: str, text: str) -> Any:
    return typer.Option(name, help=text)


def _options(function: Callable[..., Any], hints: dict[str, Any]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a function, each dataclass replaced by its fields."""
    for parameter in inspect.signature(function).parameters.values():
        kind, hint = inspect.Parameter.KEYWORD_ONLY, hints[parameter.name]
        if not is_dataclass(hint):
            yield parameter.replace(kind=kind, annotation=hint)
            continue
        field_hints = get_type_hints(hint, include_extras=True)
        for field in fields(hint):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            yield inspect.Parameter(
                field.name, kind, default=default, annotation=field_hints[field.name]
            )


CONFIG_TEXT: Final = (
    f"Settings file. Unset: {VARIABLE}, else twinbus/twinbus.toml in your configuration directory."
)


class PairDefaults(dict[str, Any]):
    """What the parser of the command line asks for the value of an option that was not given.

    It reads the file at the first question that concerns it. By then all words of the command line
    have been parsed.
    """

    def __init__(self, context: typer.Context, keys: Mapping[str, str], *, is_label: bool) -> None:
        """`keys` are the keys of the parameters; `is_label`: --pair may be the label of a pair."""
        super().__init__()
        self._context = context
        self._keys = keys
        self._is_label = is_label

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a parameter; SettingsError if the file cannot be used."""
        key = self._keys.get(name)
        # The parser is resilient while it makes a help text or completes a word.
        if key is None or self._context.resilient_parsing:
            return default
        chosen = self._chosen
        return default if chosen is None or key not in chosen.entries else chosen.value(key)

    @cached_property
    def _chosen(self) -> ConfiguredPair | None:
        name = self._context.params.get("pair")
        if name is not None:
            return self._named(name)
        # A command that needs no pair reads the file only with --pair.
        needs_pair = any(KEYS[key].is_side or key == "ledger" for key in self._keys.values())
        if not needs_pair or self._named_by(is_argument_too=True):
            return None
        file = _read(self._context.params.get("config"))
        if file is None or len(file.pairs) != 1:
            return None
        (pair,) = file.pairs.values()
        print(f"twinbus: using pair {pair.name} of {file.path}", file=sys.stderr)
        return pair

    def _named(self, name: str) -> ConfiguredPair | None:
        config = self._context.params.get("config")
        if self._is_label:
            found = _pair_of_process(name, config)
            return found and found[0]
        chosen = require_pair(_read(config), name, config)
        for key, source in self._named_by().items():
            if source == "ENVIRONMENT" and key in chosen.entries:
                line = f"twinbus: {KEYS[key].variable} overrides the {key} of pair {name}"
                print(line, file=sys.stderr)
        return chosen

    def _named_by(self, *, is_argument_too: bool = False) -> dict[str, str]:
        """Return the sides that the command line or the environment gives, each with which."""
        found = {}
        for parameter in self._context.command.params:
            name = parameter.name or ""
            key = self._keys.get(name, "")
            is_argument = parameter.param_type_name == "argument"
            is_ledger = is_argument_too and is_argument and key == "ledger"
            if not key or not (KEYS[key].is_side or is_ledger):
                continue
            source = self._context.get_parameter_source(name)
            if source is not None and source.name in {"COMMANDLINE", "ENVIRONMENT"}:
                found[key] = source.name
            elif source is None and parameter.resolve_envvar_value(self._context):
                found[key] = "ENVIRONMENT"
        return found


def keys_of(parameters: list[Parameter]) -> dict[str, str]:
    return {
        parameter.name: mark.settings_key
        for parameter in parameters
        for mark in getattr(parameter.annotation, "__metadata__", ())
        if hasattr(mark, "settings_key")
    }


def settings_parameters(keys: Mapping[str, str], *, is_label: bool) -> list[Parameter]:
    """Return the parameters --pair, unless the command has its own, and --config."""

    def take_defaults(context: typer.Context, value: str | None) -> str | None:
        context.default_map = PairDefaults(context, keys, is_label=is_label)
        return value

    # Both are eager: they are parsed before what they give values for.
    pair = typer.Option(metavar="NAME", help="A pair of the settings file.", is_eager=True)
    config = typer.Option(
        metavar="FILE", help=CONFIG_TEXT, is_eager=True, callback=take_defaults if keys else None
    )
    options = {"config": config} if is_label else {"pair": pair, "config": config}
    return [
        Parameter(
            name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, info]
        )
        for name, info in options.items()
    ]


def require_pair(file: SettingsFile | None, name: str, config: str | None) -> ConfiguredPair:
    """Return the pair of this name; WrongUse, with the names in the file, if it is not there."""
    if file is None:
        where = no_file_text(settings_place(config, os.environ))
        raise WrongUse(f"--pair {name!r:.60}: {where}")
    if name not in file.pairs:
        close = get_close_matches(name, file.pairs, n=1)
        there = f"did you mean {close[0]}?" if close else f"it has {', '.join(file.pairs) or None}"
        raise WrongUse(f"{file.path} has no pair {name!r:.60}; {there}")
    return file.pairs[name]


def running_name(name: str, config: str | None) -> str:
    """Return the label, or LABEL.PID, of a configured pair; any other name as it is."""
    found = _pair_of_process(name, config)
    if found is None:
        return name
    pair, suffix = found
    return pair.label + suffix


def _pair_of_process(name: str, config: str | None) -> tuple[ConfiguredPair, str] | None:
    """Return the pair that NAME or NAME.PID names, and its .PID; None: it is not configured."""
    file = _read(config)
    if file is None:
        return None
    stem, dot, pid = name.rpartition(".")
    names = {name: "", stem: dot + pid} if pid.isdecimal() else {name: ""}
    for one, suffix in names.items():
        if one in file.pairs:
            return file.pairs[one], suffix
    return None


def _read(config: str | None) -> SettingsFile | None:
    return read_settings(settings_place(config, os.environ))
