"""What makes two states the same: every attribute of every object, with four exceptions.

Times count from now: the code ends the names of durations in `_s`, so every other float is a time.
What is long past, or far away, is one. Lock tokens and the backlog queues have no names of their
own. Counters and texts for people, on which no decision depends, are left out.
"""

from __future__ import annotations

import marshal
import pickle
from collections import OrderedDict, deque
from enum import Enum
from hashlib import blake2b
from typing import Any, Final

AGE_MAX_S: Final = 10.0
"""Ages beyond this are one: no wait of the world's options is longer, but that of an idle link."""

AHEAD_MAX_S: Final = 120.0
"""Later deadlines are one: time never passes so far while something is to be done."""

AGES_MAX_S: Final = {
    "accepted_at": 10.0,
    "_answered": 10.0,
    "failing_since": 10.0,
    "first_failure_at": 10.0,
    "forced_at": 0.0,
    "heard_at": 24.0,
    "passed_on_at": 0.0,
    "peek_at": 0.0,
    "_peek_after": 0.0,
    "proven_at": 5.0,
    "search_at": 0.0,
    "_waiting_since": 0.0,
    "ticked_at": 5.0,
    "tried_at": 5.0,
    "turn_at": 0.0,
}
"""By attribute, where a younger age already makes no difference."""

COUNTS_MAX: Final = {
    "_queue_retries": 1,
    "_recoveries": 2,
    "_retries": 1,
    "pulls": 1,
    "window": 4,
}
"""By attribute, where more already makes no difference."""

TIMES_MS: Final = {"epoch"}
"""Times in whole milliseconds."""

KEYS_LEFT_OUT: Final = {"_recovered"}
"""Dicts whose values say what their keys do."""

LEFT_OUT: Final = {
    "Fleet": {"now", "settings"},
    "Rivals": {"now"},
    "EntityFailover": {"last_error", "last_error_at", "reason", "since"},
    "OwnEvidence": {"kinds"},
    "Pump": {
        "_poll_at",
        "_poll_s",
        "_sending",
        "completed",
        "dead_lettered",
        "deferred",
        "forwarded",
        "limits",
        "meter",
        "not_served",
    },
    "Intake": {
        "_fetch_window",
        "_largest_bytes",
        "_limit_bytes",
        "_limit_messages",
        "_link_window",
        "_lock_most_s",
        "on_removed",
    },
    "Settlements": {"_intake", "_opened_at", "remembered"},
    "WaitingMessages": {"_deferred", "_destinations", "_intake"},
    "ReceiveControl": {
        "_deferred",
        "_destinations",
        "_intake",
        "_settlements",
        "_waiting",
        "pace",
    },
    "StrictOrder": {
        "_destinations",
        "_intake",
        "_settlements",
        "_deferred",
        "_receiving",
        "_sending",
    },
    "SessionLanes": {"_in_memory_max"},
    "_QueueUse": {"reason"},
    "BacklogMessage": {
        "delivery_id",
        "enqueued_ms",
        "epoch",
        "fault",
        "is_left",
        "path",
        "received_at",
        "size_bytes",
        "wire",
    },
    "Destination": {"attached_at", "limit_bytes", "path", "reason"},
    "Destinations": {"_only", "draw", "grace_s", "home", "primary_answered_at"},
    "KeptChoice": {"_pick", "_rotation"},
    "CallSessions": {"_backlog", "_failover", "_order", "_pick", "_rotation", "_scan"},
    "SendDecisions": {
        "_backlog",
        "_entity",
        "_is_patient",
        "_jitter",
        "_policy",
        "_tries_for_others",
        "primary_error",
        "queue_errors",
    },
    "World": {"now", "queue_names", "settings", "tokens"},
    "Application": {"name", "path", "world"},
    "Relay": {
        "_memory",
        "in_flight",
        "program",
        "queue",
        "sending",
        "timer_at",
        "to_settle",
        "world",
    },
}
"""By class: what no decision depends on in these worlds."""

_PLAIN: Final = (int, str, bool, type(None))


class _Walk:
    """One walk through all objects of a world."""

    def __init__(self, now: float, names: dict[str, str]) -> None:
        self._now = now
        self._names = names
        self._numbers: dict[int, int] = {}
        self.tokens: dict[bytes, int] = {}

    def value(self, value: Any, name: str = "") -> Any:
        kind = type(value)
        if name == "pickled":
            return self._memory(value) if value else b""
        if kind is str:
            return self._names.get(value, value)
        if kind is bool or value is None:
            return value
        if kind is int:
            if name in TIMES_MS:
                return self._time(value / 1_000, name)
            return min(value, COUNTS_MAX.get(name, value))
        if kind is float:
            return self._time(value, name)
        if kind is bytes:
            return ("token", self.tokens.setdefault(value, len(self.tokens)))
        if isinstance(value, Enum):
            return value.name
        if kind in (tuple, list, deque):
            return tuple([self.value(one, name) for one in value])
        if kind in (dict, OrderedDict):
            return self._dict(value, name)
        if kind in (set, frozenset):
            return tuple(sorted([self.value(one, name) for one in value], key=repr))
        if isinstance(value, BaseException):
            return kind.__name__
        if isinstance(value, type):
            return value.__name__
        if callable(value):
            return getattr(value, "__name__", "")
        return self._object(value)

    def _memory(self, pickled: bytes) -> Any:
        """Return what stands for the memory of a relay; it is walked once for each time of day."""
        known = _MEMORIES.get((pickled, self._now))
        if known is None:
            walk = _Walk(self._now, {})
            whole = marshal.dumps(walk.value(pickle.loads(pickled)), 2)
            known = blake2b(whole, digest_size=16).digest(), walk.tokens
            if len(_MEMORIES) >= MEMORIES_MAX:
                _MEMORIES.clear()
            _MEMORIES[pickled, self._now] = known
        digest, tokens = known
        # The queue's own walk comes later, and meets the same tokens.
        self.tokens.update({token: len(self.tokens) + at for token, at in tokens.items()})
        return digest

    def _time(self, value: float, name: str) -> Any:
        if name.endswith("_s"):
            return round(value, 3)
        ahead_s = round(value - self._now, 3)
        return max(-AGES_MAX_S.get(name, AGE_MAX_S), min(ahead_s, AHEAD_MAX_S))

    def _dict(self, value: dict[Any, Any], name: str) -> Any:
        if name in KEYS_LEFT_OUT:
            return tuple([self.value(one, name) for one in value.values()])
        items = [(self.value(key), self.value(one, name)) for key, one in value.items()]
        if any(type(key) is str and key in self._names for key in value):
            items.sort(key=lambda item: str(item[0]))
        return tuple(items)

    def _object(self, value: Any) -> Any:
        number = self._numbers.get(id(value))
        if number is not None:
            return ("again", number)
        self._numbers[id(value)] = len(self._numbers)
        kind = type(value)
        return (
            kind.__name__,
            *_seen_as(value),
            *[
                self.value(getattr(value, name, None), name)
                for name in _ATTRIBUTES.get(kind) or _attributes(value)
            ],
        )


MEMORIES_MAX: Final = 20_000

_MEMORIES: dict[tuple[bytes, float], tuple[bytes, dict[bytes, int]]] = {}
"""By pickled memory and time: its digest, and its lock tokens in order."""

_ATTRIBUTES: dict[type, list[str]] = {}


def _attributes(value: Any) -> list[str]:
    kind = type(value)
    names: dict[str, None] = {}
    for each in reversed(kind.__mro__):
        slots = each.__dict__.get("__slots__", ())
        names.update(dict.fromkeys([slots] if isinstance(slots, str) else slots))
    if hasattr(value, "__dict__"):
        names.update(dict.fromkeys(vars(value)))
    left_out: set[str] = set()
    for each in kind.__mro__:
        left_out |= LEFT_OUT.get(each.__name__, set())
    found = [name for name in names if name not in left_out and not name.startswith("__")]
    _ATTRIBUTES[kind] = found
    return found


def _seen_as(value: Any) -> tuple[bool, ...]:
    """Return what stands for times of an object that are only compared with those of others."""
    match type(value).__name__:
        case "Destinations":
            answered_at = value.primary_answered_at
            return tuple([d.attach_at is not None and answered_at > d.attach_at for d in value])
        case "Settlements":
            return tuple([m.received_at < value._opened_at for m in value._intake])
    return ()


def fingerprint(world: Any) -> bytes:
    """Return the same bytes for states that are the same."""
    names = {name: f"queue {place}" for place, name in enumerate(world.ordered_queues())}
    # Version 2: later ones mark what is referred to twice, which depends on the history.
    return blake2b(marshal.dumps(_Walk(world.now, names).value(world), 2), digest_size=16).digest()
