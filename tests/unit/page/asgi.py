"""Calls an ASGI application without a socket, and answers of hosts that tests make up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from starlette.types import ASGIApp, Message

from twinbus.control.protocol import HostCard
from twinbus.page.core.view import HostAnswer
from twinbus.status.document import HostStatus


@dataclass
class PageAnswer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def call(
    app: ASGIApp, method: str, target: str, headers: Mapping[str, str], body: bytes = b"",
    *, frames: int = 0,
) -> PageAnswer:  # fmt: skip
    """Return the answer; with `frames` hang up after that many pieces of the body."""
    path, _, query = target.partition("?")
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": path,
        "raw_path": quote(path).encode(), "query_string": query.encode(), "scheme": "http",
        "headers": [(name.lower().encode(), text.encode()) for name, text in headers.items()],
        "client": ("127.0.0.1", 4711), "server": ("127.0.0.1", 80), "root_path": "",
    }  # fmt: skip
    answer, pieces, enough = PageAnswer(), 0, asyncio.Event()
    incoming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if incoming:
            return incoming.pop()
        await enough.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal pieces
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): text.decode() for name, text in message["headers"]}
            return
        answer.body += message.get("body", b"")
        pieces += 1
        if frames and pieces >= frames:
            enough.set()

    await app(scope, receive, send)
    return answer


def answer(
    found: HostStatus | None, number: int = 0, *, name: str = "contoso", pid: int = 7,
    kind: str = "pair", why: str = "",
) -> HostAnswer:  # fmt: skip
    card = HostCard(kind, name, pid, "app.py", "2026-11-17T00:00:00+00:00")
    return HostAnswer(f"{name}.{pid}.abc", card, found, why, number)
