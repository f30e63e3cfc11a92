"""Pairs of another host's page, made fit to be shown: a peer's answer is foreign input. Pure.

Every field gets the type that the page expects, texts and lists are cut, and a field of another
name is left out. So a peer that lies can show wrong figures of its own pairs and nothing else.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

from twinbus.page.core.pair_table import Pair

PAIRS_MAX: Final = 200
LIST_MAX: Final = 1_000
TEXT_MAX: Final = 500
NUMBER_MAX: Final = 1e15

KINDS: Final = ("pair", "syphon")
STATES: Final = ("running", "gone", "silent")

_SPAN: Final = (float, float, str)
_ENTITY: Final = {
    "path": str, "state": str, "states": [str], "since": float, "forced": bool, "frozen": bool,
    "sent": int, "diverted": int, "raised": int, "reason": str, "last_error": str,
    "last_error_at": float, "raising": int, "raising_reason": str, "fails_over_in_s": float,
    "next_ping_in_s": float, "spans": [_SPAN],
}  # fmt: skip
_SYPHON: Final = {
    "paused": bool, "completed": int, "in_flight": int, "dead_lettered": int, "rate": float,
    "forecast_s": float, "limit": str, "obstacles": [{"what": str, "why": str}],
}  # fmt: skip
_PAIR: Final = {
    "id": str, "kind": str, "name": str, "pid": int, "host": str, "program": str, "primary": str,
    "secondary": str, "started_at": float, "state": str, "state_since": float, "why": str,
    "protected": bool, "verified_at": float, "safe": bool, "safety": str, "attention": [str],
    "waiting": float, "syphon": _SYPHON, "entities": [_ENTITY],
    "queues": [{"path": str, "state": str, "why": str, "returns_in_s": float}],
    "sends": [(int, int, int, int)], "unseen": [(float, float)],
}  # fmt: skip


def foreign_pairs(document: object, place: str) -> list[Pair]:
    """Return the peer's own pairs, with ids that begin with `place`; ValueError if it is no view.

    Pairs that the peer shows for its own peers are left out: two peers may show each other.
    """
    found = document.get("pairs") if isinstance(document, dict) else None
    if type(found) is not list:
        raise ValueError("its answer is no view of a page")
    pairs = []
    for one in found[:PAIRS_MAX]:
        if not isinstance(one, dict) or one.get("read_only"):
            continue
        pair = _fitted(one, _PAIR)
        if pair["kind"] not in KINDS or pair["state"] not in STATES:
            continue
        pair["protected"] = pair["protected"] is not False
        for entity in pair["entities"]:
            # The page of an earlier release knows no other words than the state.
            entity["states"] = entity["states"] or [entity["state"]]
        pairs.append({**pair, "id": f"{place}/{pair['id']}", "read_only": True})
    return pairs


def _fitted(value: Any, shape: Any) -> Any:
    """Return the value if it has this shape, else the empty value of the shape."""
    match shape:
        case dict():
            if not isinstance(value, dict):
                return None
            return {name: _fitted(value.get(name), kind) for name, kind in shape.items()}
        case list():
            items = value[:LIST_MAX] if isinstance(value, list) else []
            made = (_fitted(item, shape[0]) for item in items)
            return [item for item in made if item is not None]
        case tuple():
            if not isinstance(value, list) or len(value) != len(shape):
                return None
            return [_fitted(item, kind) for item, kind in zip(value, shape, strict=True)]
    if shape is str:
        return value[:TEXT_MAX] if isinstance(value, str) else ""
    if shape is bool:
        return value if isinstance(value, bool) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Compared first: a whole number may be too large to become a float.
    if not is_number or not -NUMBER_MAX < value < NUMBER_MAX or not isfinite(value):
        return 0 if shape is int else None
    return int(value) if shape is int else value
