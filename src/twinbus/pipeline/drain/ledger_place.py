"""The file system of a drain's ledger, as tasks and their driver open it: pyarrow's."""

from __future__ import annotations

import importlib
import os
from typing import Any

from twinbus.ledger.record import LedgerError


def file_system(place: str) -> tuple[Any, str]:
    """Return the file system of a place and the path in it; LedgerError if pyarrow has none."""
    fs: Any = importlib.import_module("pyarrow.fs")
    url = place if "://" in place else os.path.abspath(place)
    scheme, _, rest = url.partition("://")
    known = f"s3://{rest}" if scheme in {"s3a", "s3n"} else url
    try:
        files, folder = fs.FileSystem.from_uri(known)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise LedgerError(
            f"tasks cannot write a ledger to {url}: {reason}; name a directory that all executors"
            " reach, or a URL of hdfs, s3, gs or abfss"
        ) from error
    return files, folder.rstrip("/")
