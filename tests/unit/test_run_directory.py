"""Where the processes of one user meet."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from twinbus.run_directory import (
    VARIABLE,
    RunDirectory,
    RunDirectoryUnusable,
    prepare,
    run_directories_of,
)


def test_directories_by_environment(tmp_path: Path) -> None:
    own = Path(tempfile.gettempdir(), f"twinbus-{os.getuid()}")
    assert [p.path for p in run_directories_of({VARIABLE: "/here"})] == [Path("/here")]
    assert run_directories_of({VARIABLE: ""}) == []
    assert [p.path for p in run_directories_of({})] == [own]
    found = [p.path for p in run_directories_of({"XDG_RUNTIME_DIR": str(tmp_path)})]
    assert found == [tmp_path / "twinbus", own]
    assert [p.path for p in run_directories_of({"XDG_RUNTIME_DIR": "/not/there"})] == [own]


def test_a_default_directory_is_never_somebody_elses_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "run"
    target.mkdir(mode=0o700)
    link.symlink_to(target)
    with pytest.raises(RunDirectoryUnusable, match="not a directory"):
        prepare(RunDirectory(link, is_configured=False))
    prepare(RunDirectory(link, is_configured=True))
