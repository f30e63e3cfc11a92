"""Decides which twins a syphon pumps, and remembers what twins hold. Pure.

A twin is pumped from the listing that finds messages in it until it was empty for a while: in
healthy times twins cost nothing. Subscriptions, and twins with sessions, are left to their
consumers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from twinbus.servicebus.twins import FoundTwin
from twinbus.status.document import TwinContents

IDLE_S: Final = 900.0
"""A pump ends when its twin was empty at each listing for this time."""

SUBSCRIPTION: Final = "a subscription cannot be sent to"
SESSIONS: Final = "it has sessions"


class PumpChanges(NamedTuple):
    start: list[str]
    stop: list[str]


class TwinBook:
    """The twins of one primary, by the last listing."""

    def __init__(self, only: frozenset[str] | None = None) -> None:
        """`only` are the paths to pump, in lower case; None: all."""
        self._only = only
        self._found: list[FoundTwin] = []
        self._listed_at = 0.0
        self._held_since: dict[str, float] = {}
        """Since when each listing found messages in a twin."""
        self._empty_since: dict[str, float] = {}
        """Since when a twin with a pump was empty."""

    def listed(
        self, found: Sequence[FoundTwin], pumped: Mapping[str, bool], now: float
    ) -> PumpChanges:
        """Take a listing; return the twins whose pumps have to start or to end.

        `pumped` are the twins with pumps, and whether messages are in flight there.
        """
        self._found, self._listed_at = list(found), now
        before = self._held_since
        self._held_since = {
            twin.path: before.get(twin.path, now)
            for twin in found
            # One that was not counted this time may hold what it held before.
            if twin.waiting or (twin.waiting is None and twin.path in before)
        }
        movable = {twin.path: twin for twin in found if self._is_pumped(twin)}
        start = [path for path, one in movable.items() if one.active and path not in pumped]
        self._empty_since = {
            path: self._empty_since.get(path, now)
            for path, is_busy in pumped.items()
            if path in movable and not movable[path].active and not is_busy
        }
        stop = [
            path
            for path in pumped
            if path not in movable or now - self._empty_since.get(path, now) >= IDLE_S
        ]
        return PumpChanges(start, stop)

    def contents(self, now: float) -> dict[str, TwinContents]:
        """Return what each twin held at the last listing."""
        listed_s = round(now - self._listed_at, 1)
        return {
            twin.path: contents_of(twin, _since(self._held_since.get(twin.path), now), listed_s)
            for twin in self._found
        }

    def _is_pumped(self, twin: FoundTwin) -> bool:
        is_selected = self._only is None or twin.path.lower() in self._only
        return is_selected and not twin.topic and not twin.requires_session


def contents_of(
    twin: FoundTwin, waits_s: float | None = None, listed_s: float | None = None
) -> TwinContents:
    """Return what a listing found in one twin; a number that it does not have is not known."""
    is_counted = twin.waiting is not None
    return TwinContents(
        topic=twin.topic,
        waiting=twin.waiting,
        active=twin.active if is_counted else None,
        scheduled=twin.scheduled if is_counted else None,
        deferred=twin.deferred,
        waits_s=waits_s,
        consumers_only=SUBSCRIPTION if twin.topic else SESSIONS if twin.requires_session else "",
        listed_s=listed_s,
    )


def _since(began: float | None, now: float) -> float | None:
    return None if began is None else round(now - began, 1)
