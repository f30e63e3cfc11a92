"""Entry point of the script `twinbus` and of `spark-submit`: runs the command line.

It imports only what needs no other package, so that it can report which packages are missing.
"""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Final, NoReturn

from twinbus.console import USAGE_ERROR
from twinbus.errors import MissingPackageError
from twinbus.extras import extra_of, install_command

NEAREST: Final = {"✔": "OK", "⚠": "!", "✖": "X", "○": "o", "–": "-", "…": "...", "→": "->"}
"""Signs of our own, and what stands for them where the output cannot encode them."""


def main() -> None:
    codecs.register_error("twinbus", _nearest)
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="twinbus")
    try:
        from twinbus.console.cli import main as run
    except ModuleNotFoundError as error:
        _report_missing("the command line", error)
    try:
        run()
    except ModuleNotFoundError as error:
        _report_missing("this command", error)


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for characters that cannot be encoded, and where to go on."""
    assert isinstance(error, UnicodeEncodeError)
    left_out = error.object[error.start : error.end]
    return "".join(NEAREST.get(char, "?") for char in left_out), error.end


def _report_missing(what: str, error: ModuleNotFoundError) -> NoReturn:
    text = str(error)
    if not isinstance(error, MissingPackageError):
        if (error.name or "twinbus").partition(".")[0] == "twinbus":
            raise error
        extra = extra_of(error) or "all"
        text = f"{what} needs the extra `{extra}` ({error}): {install_command(extra)}"
    print(f"twinbus: {text}", file=sys.stderr)
    raise SystemExit(USAGE_ERROR) from None


if __name__ == "__main__":
    # spark-submit runs this file as a script, whose directory then comes first for all imports.
    if Path(sys.path[0]) == Path(__file__).resolve().parent:
        del sys.path[0]
    main()
