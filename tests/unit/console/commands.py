"""Run one command of the console in this process: exit status, stdout and stderr."""

from __future__ import annotations

import sys
from typing import NamedTuple
from unittest import mock

import pytest

from twinbus.console import cli


class Ran(NamedTuple):
    status: int | str | None
    out: str
    err: str


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Ran:
    """What `twinbus WORDS` does, the environment as the test left it."""
    capsys.readouterr()
    with mock.patch.object(sys, "argv", ["twinbus", *words]), pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return Ran(ended.value.code, out, err)
