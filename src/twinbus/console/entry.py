"""Entry point of the script `twinbus`: runs the command line, or names the missing packages.

It imports only what needs no other package, so that it can report what is missing.
"""

from __future__ import annotations

import sys
from typing import Final, NoReturn

from twinbus.errors import MissingPackageError
from twinbus.extras import extra_of, install_command

USAGE_ERROR: Final = 2


def main() -> None:
    """Run the command line."""
    try:
        from twinbus.console.cli import main as run
    except ModuleNotFoundError as error:
        _report_missing("the command line", error)
    try:
        run()
    except ModuleNotFoundError as error:
        _report_missing("this command", error)


def _report_missing(what: str, error: ModuleNotFoundError) -> NoReturn:
    text = str(error)
    if not isinstance(error, MissingPackageError):
        if (error.name or "twinbus").partition(".")[0] == "twinbus":
            raise error
        extra = extra_of(error) or "all"
        text = f"{what} needs the extra `{extra}` ({error}): {install_command(extra)}"
    print(f"twinbus: {text}", file=sys.stderr)
    raise SystemExit(USAGE_ERROR) from None
