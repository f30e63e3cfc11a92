"""The judgement of a pair on the page: the words of `twinbus status`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from twinbus.console.syphon import text as syphon_text
from twinbus.page.core.view import Judgement
from twinbus.pairing.core.judgement import judgement_of
from twinbus.pairing.core.status_reading import read_status

SYPHON_FIELDS: Final = ("queues", "paused", "without_pump")
"""What of a syphon's status needs attention."""


def judged(status: Mapping[str, Any], now: float) -> Judgement:
    """Return what needs attention and whether sends are safe, of a pair or a syphon."""
    if "entities" not in status:
        known = {name: status[name] for name in SYPHON_FIELDS if name in status}
        if not syphon_text.needs_attention(known):
            return Judgement([], True, "")
        lines = syphon_text.status_lines("", known)
        found = [line.strip(" !") for line in lines if line.startswith("  ! ")]
        return Judgement(["the syphon is paused"] * bool(known["paused"]) + found, True, "")
    pair = judgement_of(read_status(status), now)
    return Judgement(pair.attention, pair.is_safe, pair.sends, pair.states, pair.exposed)
