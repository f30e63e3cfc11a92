"""What the script `twinbus` calls: the command line, or one line on the packages that it needs.

Nothing outside the standard library is imported before that line can be said.
"""

from __future__ import annotations

import sys
from typing import Final, NoReturn

__all__ = ["main"]

USAGE_ERROR: Final = 2


def main() -> None:
    """Run the command line."""
    try:
        from twinbus.console.cli import main as run
    except ModuleNotFoundError as error:
        _say_what_is_needed("the command line", "console", error)
    try:
        run()
    except ModuleNotFoundError as error:
        _say_what_is_needed("this command", "all", error)


def _say_what_is_needed(what: str, extra: str, error: ModuleNotFoundError) -> NoReturn:
    if (error.name or "twinbus").partition(".")[0] == "twinbus":
        raise error
    line = f"twinbus: {what} needs more packages: pip install 'twinbus[{extra}]' ({error})"
    print(line, file=sys.stderr)
    raise SystemExit(USAGE_ERROR) from None
