"""Adds a TrackingId to the text of a refusal, as Azure does; the log line shows the same id."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from twinbus.broker.refusals import Refusal

MARK = " TrackingId:"


class RefusalTracker:
    def __init__(self, namespace: str, now_ms: Callable[[], int]) -> None:
        self._namespace = namespace
        self._now_ms = now_ms

    def __call__(self, refusal: Refusal) -> None:
        """Extend the refusal's text, once."""
        if not refusal.is_tracked or MARK in refusal.description:
            return
        now = datetime.fromtimestamp(self._now_ms() / 1000, UTC)
        refusal.description += (
            f"{MARK}{uuid.uuid4()}_B, SystemTracker:{self._namespace}, "
            f"Timestamp:{now:%Y-%m-%dT%H:%M:%S}"
        )
