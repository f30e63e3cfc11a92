"""Output format, exit status and usage errors of all commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from twinbus.errors import TwinbusError

COULD_NOT: Final = 1
USAGE_ERROR: Final = 2
ATTENTION: Final = 3
"""The command succeeded, and what it shows needs attention."""
STOPPED: Final = 130
"""What a shell reports for a command that Ctrl-C ended."""


class Output(StrEnum):
    """Output format of a command."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", help="Output format.")]


class WrongUse(TwinbusError):
    """A usage error: nothing was done. The text says what to give instead."""


def print_json(document: Any) -> None:
    """Print one JSON document on stdout: indented on a terminal, else on one line."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(document, indent=indent), flush=True)


def show(output: Output, document: Any, lines: Iterable[str]) -> None:
    """Print a result: the document as JSON, or the lines as text."""
    if output is Output.JSON:
        print_json(document)
    else:
        print("\n".join(lines), flush=True)
