"""The cache of this user, whose files a JVM maps or runs as code.

Another user who could write there would run code as this one. So nothing is taken from a place that
belongs to another user than this one and root, or that others may write to.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Where files are kept from one run to the next."""
    cache = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "twinbus"


def prepare_cache(cache: Path) -> None:
    """Create the directory for this user alone; OSError if it cannot be used."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.mkdir(mode=0o700, exist_ok=True)
    if not is_trusted(cache):
        raise PermissionError(f"others can write to {cache}")


def is_trusted(*places: Path) -> bool:
    """Whether only this user or root can have written what is there; links are not followed."""
    try:
        found = [place.lstat() for place in places]
    except OSError:
        return False
    return all(
        one.st_uid in (os.getuid(), 0)
        and not stat.S_ISLNK(one.st_mode)
        and not one.st_mode & _OTHERS_WRITE
        for one in found
    )
