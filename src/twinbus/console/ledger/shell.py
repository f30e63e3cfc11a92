"""`twinbus ledger shell`: several reports and tasks on one ledger, with one Spark session.

Spark takes most of the time of a small report to start. A line is a command without `twinbus
report` or `twinbus ledger` and without the ledger: `charges --since 24h`.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import typer

from twinbus.console.options import require_ledger
from twinbus.console.spark_thread import SparkThread, require_spark, settings_for
from twinbus.console.terminal.live_line import LiveLine
from twinbus.console.terminal.output import COULD_NOT, USAGE_ERROR
from twinbus.errors import TwinbusError

if TYPE_CHECKING:
    from twinbus.console.ledger.options import PlaceOptions

RootCommand = Any
"""The command `twinbus` of typer, whose version decides about its type."""

REPORTS: Final = ("conservation", "availability", "charges", "reconciliation", "all")
TASKS: Final = ("status", "update", "rebuild", "compact", "retain")
ENDS: Final = ("exit", "quit")
PROMPT: Final = "ledger> "
HELP: Final = (
    f"reports: {', '.join(REPORTS)}\n"
    f"tables:  {', '.join(TASKS)}\n"
    "Options as on the command line, for example: charges --since 24h. COMMAND --help shows them."
    f" {' or '.join(ENDS)} ends the shell."
)


def run(root: RootCommand, given: PlaceOptions) -> int:
    """Run the lines of the terminal or of a pipe; return the exit status of the last one."""
    require_spark()
    require_ledger(given.ledger)
    status = 0
    with SparkThread(master=given.master, settings=settings_for(given.ledger)) as spark:
        with LiveLine() as line:
            line.say("starting Spark")
            spark.submit(lambda session: None).result()
        for text in _lines():
            try:
                words = shlex.split(text)
            except ValueError as error:
                status = _refuse(f"{error}: {text.strip()}")
                continue
            if words and words[0] in ENDS:
                break
            if words:
                status = _perform(root, given, words)
    return status


def _lines() -> Iterator[str]:
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with suppress(ImportError):
        import readline  # noqa: F401  # lines can then be edited and recalled
    print(HELP)
    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()


def _perform(root: RootCommand, given: PlaceOptions, words: Sequence[str]) -> int:
    """Run one command; its error is a line and does not end the shell."""
    command, *options = words
    if command == "help":
        print(HELP)
        return 0
    if command not in (*REPORTS, *TASKS):
        return _refuse(f"no command {command}; there are {', '.join((*REPORTS, *TASKS))}")
    group = "report" if command in REPORTS else "ledger"
    tables = [] if given.tables is None else ["--tables", given.tables]
    # The options of the line come last, so that they win.
    argv = [group, command, *tables, *_cluster(given), *options, "--", given.ledger]
    try:
        return int(root.main(argv, prog_name="twinbus", standalone_mode=False) or 0)
    except TwinbusError as error:
        typer.echo(f"twinbus: {error}", err=True)
        return COULD_NOT
    except Exception as error:
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        return USAGE_ERROR


def _cluster(given: PlaceOptions) -> list[str]:
    master = [] if given.master is None else ["--master", given.master]
    return [*master, *(["--shared"] if given.shared else [])]


def _refuse(text: str) -> int:
    typer.echo(f"twinbus: {text}", err=True)
    return USAGE_ERROR
