"""Answers of hosts as the page's tests make them up."""

from __future__ import annotations

from typing import Any

from twinbus.control.protocol import HostCard
from twinbus.page.core.view import HostAnswer


def entity(path: str = "orders", state: str = "healthy", **more: Any) -> dict[str, Any]:
    return {
        "path": path, "state": state, "since_s": None, "reason": "", "last_error": "",
        "forced": False, "frozen": False, "sent": 0, "diverted": 0, "raised": 0,
        "answered_pings": 0, "last_error_at": None, "fails_over_in_s": None,
        "next_ping_in_s": None, **more,
    }  # fmt: skip


def queue(path: str, state: str = "in rotation", reason: str = "") -> dict[str, Any]:
    return {"queue": path, "state": state, "reason": reason, "returns_in_s": None}


def status(*entities: dict[str, Any], **more: Any) -> dict[str, Any]:
    path = "contoso/x-servicebus-transfer/0"
    return {
        "primary": "contoso.example", "secondary": "contoso-dr.example", "protected": True,
        "searching": None, "entities": {one["path"]: one for one in entities},
        "backlog_queues": {path: queue(path)}, "sides": {}, "syphon": None, **more,
    }  # fmt: skip


def answer(
    found: dict[str, Any] | None, number: int = 0, *, name: str = "contoso", pid: int = 7,
    kind: str = "pair", why: str = "",
) -> HostAnswer:  # fmt: skip
    card = HostCard(kind, name, pid, "app.py", "2026-11-17T00:00:00+00:00")
    return HostAnswer(f"{name}.{pid}.abc", card, found, why, number)
