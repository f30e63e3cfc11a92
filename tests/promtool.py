"""Prometheus' promtool: the installed one, or Debian's, unpacked into the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

FETCH_LIMIT_S = 300.0
"""No promise, only an end of patience: the package has 19 MB."""


class NoPromtool(Exception):
    """There is none on this machine; the text says why."""


def find_promtool() -> Path:
    """Return the program; NoPromtool if it is not here and cannot be fetched."""
    if installed := shutil.which("promtool"):
        return Path(installed)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twinbus"
    home = cache / "promtool"
    if not home.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            unpacked = _fetch(Path(scratch))
            try:
                # At once, so that no other process sees a part of it.
                unpacked.rename(home)
            except OSError:
                assert home.exists(), "another process was faster, or the cache is broken"
    return home / "usr/bin/promtool"


def _fetch(scratch: Path) -> Path:
    """Return the directory with the files of Debian's package; nothing is installed."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NoPromtool("promtool is not installed, and fetching it needs apt-get and dpkg-deb")
    _run(scratch, "apt-get", "-q", "download", "prometheus")
    (package,) = scratch.glob("prometheus_*.deb")
    _run(scratch, "dpkg-deb", "-x", package.name, "unpacked")
    return scratch / "unpacked"


def _run(directory: Path, *command: str) -> None:
    try:
        subprocess.run(
            command, cwd=directory, capture_output=True, timeout=FETCH_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        why = getattr(error, "stderr", None) or b""
        text = why.decode(errors="replace").strip()[-200:]
        raise NoPromtool(
            f"promtool is not installed, and {command} failed: {text or error}"
        ) from error
