"""Whether sends through a pair are safe now, in one sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from twinbus.console.terminal.table import counted, duration, visible
from twinbus.pairing.core.status import IN_ROTATION

NAMED_MAX: Final = 5
"""Entities to name in one line; the table has them all."""


def safety(status: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether every send is stored somewhere or retried until it is, and where it goes."""
    danger = _danger(status)
    if danger:
        return False, f"sends are NOT safe: {danger}"
    parts = []
    if diverted := _paths(status, "failed over"):
        parts.append(f"those to {named(diverted)} go to the backlog")
    if suspects := _entities(status, "suspect"):
        left_s = max(entity.get("fails_over_in_s") or 0.0 for entity in suspects)
        parts.append(
            f"those to {named(_paths(status, 'suspect'))} are retried, and diverted within"
            f" {duration(left_s)} (a call whose timeout ends before raises)"
        )
    ready = counted(len(_ready_queues(status)), "backlog queue")
    rest = f"the primary takes {'the rest' if parts else 'them'}, {ready} can take over"
    return True, f"sends are safe: {'; '.join([*parts, rest])}"


def named(paths: Sequence[str]) -> str:
    """Return the first paths and the number of the others."""
    more = len(paths) - NAMED_MAX
    return ", ".join(paths[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")


def _danger(status: Mapping[str, Any]) -> str:
    """Return why some send may raise although its caller waits; empty: none does."""
    primary = status.get("sides", {}).get("primary", {})
    if status.get("faulted") or primary.get("reason"):
        why = status.get("faulted") or f"the primary is {primary['state']}"
        return f"every call raises ({visible(why)})"
    if unusable := _paths(status, "unusable"):
        return f"those to {named(unusable)} raise until a ping is answered"
    if not status.get("protected", True):
        return "they depend on the primary alone, because there is no backlog queue"
    if not _ready_queues(status):
        return (
            "they depend on the primary alone, because no backlog queue can be used now; diverted"
            " sends wait for one, and raise at the end of their timeout"
        )
    frozen = [
        visible(entity["path"])
        for state in ("healthy", "suspect")
        for entity in _entities(status, state)
        if entity.get("frozen")
    ]
    if frozen:
        return f"those to {named(frozen)} depend on the primary alone until `twinbus unfreeze`"
    return ""


def _ready_queues(status: Mapping[str, Any]) -> list[str]:
    # A queue in rotation has a reason while the secondary cannot be reached.
    queues = status.get("backlog_queues", {}).items()
    return [
        path for path, queue in queues if queue["state"] == IN_ROTATION and not queue.get("reason")
    ]


def _paths(status: Mapping[str, Any], state: str) -> list[str]:
    return [visible(entity["path"]) for entity in _entities(status, state)]


def _entities(status: Mapping[str, Any], state: str) -> list[Mapping[str, Any]]:
    return [one for one in status.get("entities", {}).values() if one.get("state") == state]
