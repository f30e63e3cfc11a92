"""`twinbus page` in a process, for tests."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.processes import ENTRY

LIMIT_S = 60.0
"""No promise, only an end of patience."""


class ServedPage:
    """`twinbus page` in a process, and requests to it."""

    def __init__(self, environment: dict[str, str], *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENTRY, "page", *options],
            env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
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
        code = self.process.wait(LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def paged(environment: dict[str, str], *options: str) -> Iterator[ServedPage]:
    page = ServedPage(environment, *options)
    try:
        yield page
    finally:
        if page.process.poll() is None:
            page.process.kill()
            page.process.wait()
        if page.process.stdout is not None:
            page.process.stdout.close()
