"""A disk for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.power_cut.forgetful import CannotMount, ForgetfulDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ForgetfulDisk]:
    try:
        with ForgetfulDisk(tmp_path / "disk") as mounted:
            yield mounted
    except CannotMount as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"needs a FUSE file system: {error}")
