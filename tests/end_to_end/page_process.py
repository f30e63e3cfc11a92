"""`twinbus page` in a process, for tests."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.processes import ENTRY, line_of, started

LIMIT_S = 60.0
"""No promise, only an end of patience."""


class ServedPage:
    """Requests to `twinbus page` in a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.address = line_of(process).strip()
        parts = urlsplit(self.address)
        self.host, self.token = parts.netloc, parse_qs(parts.query).get("token", [""])[0]

    def ask(self, method: str, target: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.host, timeout=LIMIT_S)
        headers = {"Authorization": f"Bearer {self.token}"}
        if body is not None:
            headers |= {"X-Twinbus-Page": "1", "Content-Type": "application/json"}
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)

    def pairs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", "/api/view")[1]["pairs"]
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT_S)


@contextmanager
def paged(environment: dict[str, str], *options: str) -> Iterator[ServedPage]:
    with started("-c", ENTRY, "page", *options, environment=environment) as process:
        yield ServedPage(process)
