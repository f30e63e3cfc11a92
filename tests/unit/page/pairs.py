"""Answers of hosts as the page's tests make them up."""

from __future__ import annotations

from twinbus.control.protocol import HostCard
from twinbus.page.core.view import HostAnswer
from twinbus.status.document import HostStatus


def answer(
    found: HostStatus | None, number: int = 0, *, name: str = "contoso", pid: int = 7,
    kind: str = "pair", why: str = "",
) -> HostAnswer:  # fmt: skip
    card = HostCard(kind, name, pid, "app.py", "2026-11-17T00:00:00+00:00")
    return HostAnswer(f"{name}.{pid}.abc", card, found, why, number)
