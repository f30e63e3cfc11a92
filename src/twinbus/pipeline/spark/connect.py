"""Sessions of Spark Connect: a client of a Spark that runs elsewhere."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEME: Final = "sc://"
_PORT: Final = 15002
_ANSWER_S: Final = 10.0


def connected_session() -> SparkSession | None:
    """The session of Spark Connect in this process, if there is one."""
    module: Any = sys.modules.get("pyspark.sql.connect.session")
    if module is None:
        return None
    remote = module.SparkSession
    return remote.getActiveSession() or remote._get_default_session()  # type: ignore[no-any-return]


def connect(url: str) -> SparkSession:
    """A session at a URL `sc://HOST:PORT`; OSError or ImportError where there can be none."""
    from pyspark.sql import SparkSession

    parts = urlsplit(url)
    # Spark itself tries for minutes before it says that nobody answers.
    socket.create_connection((parts.hostname or "", parts.port or _PORT), _ANSWER_S).close()
    builder: Any = SparkSession.builder
    return builder.remote(url).getOrCreate()  # type: ignore[no-any-return]
