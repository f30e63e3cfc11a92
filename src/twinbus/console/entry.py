"""Entry point of the script `twinbus`: runs the command line, or names the missing packages.

It imports only the standard library, so that it can report what is missing.
"""

from __future__ import annotations

import sys
from typing import Final, NoReturn

USAGE_ERROR: Final = 2


def main() -> None:
    """Run the command line."""
    try:
        from twinbus.console.cli import main as run
    except ModuleNotFoundError as error:
        _report_missing("the command line", "console", error)
    try:
        run()
    except ModuleNotFoundError as error:
        _report_missing("this command", "all", error)


def _report_missing(what: str, extra: str, error: ModuleNotFoundError) -> NoReturn:
    if (error.name or "twinbus").partition(".")[0] == "twinbus":
        raise error
    line = f"twinbus: {what} needs more packages: pip install 'twinbus[{extra}]' ({error})"
    print(line, file=sys.stderr)
    raise SystemExit(USAGE_ERROR) from None
