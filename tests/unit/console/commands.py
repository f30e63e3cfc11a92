"""Run one command of the console in this process: exit status, stdout and stderr."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from twinbus.console import cli


class Ran(NamedTuple):
    status: int | str | None
    out: str
    err: str


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Ran:
    """What `twinbus WORDS` does, the environment as the test left it."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    out, err = capsys.readouterr()
    return Ran(ended.value.code, out, err)
