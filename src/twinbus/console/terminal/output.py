"""How commands answer: text or JSON, one line for an error, and their exit status."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from twinbus.errors import TwinbusError

__all__ = [
    "ATTENTION",
    "COULD_NOT",
    "STOPPED",
    "USAGE_ERROR",
    "Output",
    "OutputOption",
    "WrongUse",
    "print_json",
]

COULD_NOT: Final = 1
USAGE_ERROR: Final = 2
ATTENTION: Final = 3
"""It was done, and what it shows needs somebody."""
STOPPED: Final = 130
"""As a shell reports a command that Ctrl-C ended."""


class Output(StrEnum):
    """How a command answers."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[
    Output, typer.Option("--output", help="What to print: text to read, or JSON.")
]


class WrongUse(TwinbusError):
    """What was asked for makes no sense; the text says what would."""


def print_json(document: Any) -> None:
    """One JSON document on stdout: indented where a person looks, else one line."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(document, indent=indent), flush=True)
