"""How a command joins the command line: its options, its exit status, the end of its `--help`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from twinbus.console import STOPPED
from twinbus.console.terminal.pair_defaults import keys_of, running_name, settings_parameters
from twinbus.settings.keys import KEYS

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

KEEP_LINES: Final = "\b\n"
"""Tells the help formatter not to rewrap the lines of a paragraph."""


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
        app.command(name, epilog=epilog(example, exit_status=exit_status, note=note), cls=cls)(run)
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
    """Return a parameter that is given by its position."""
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
    """Return an option that takes no value."""
    return typer.Option(name, help=text)


def epilog(example: str, *, exit_status: str = "", note: str = "") -> str:
    """Return the end of a command's help. The lines of `example` are printed as they are."""
    paragraphs = [f"Exit status: {exit_status}"] if exit_status else []
    paragraphs += [note] if note else []
    return "\n\n".join([*paragraphs, f"{KEEP_LINES}Example: {example}"])


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
