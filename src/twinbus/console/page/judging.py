"""The judgement of a pair on the page: the words of `twinbus status`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinbus.console.control import status_text
from twinbus.console.control.safety import safety
from twinbus.console.syphon import text as syphon_text
from twinbus.page.core.view import Judgement


def judged(status: Mapping[str, Any]) -> Judgement:
    """Return what needs attention and whether sends are safe, of a pair or a syphon."""
    if "entities" not in status:
        known = {"queues": status["queues"], "paused": status["paused"]}
        if not syphon_text.needs_attention(known):
            return Judgement([], True, "")
        lines = syphon_text.status_lines("", known)
        found = [line.strip(" !") for line in lines if line.startswith("  ! ")]
        return Judgement(["the syphon is paused"] * bool(known["paused"]) + found, True, "")
    return Judgement(status_text.attention(status), *safety(status))
