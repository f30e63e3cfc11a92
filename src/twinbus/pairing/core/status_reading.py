"""A PairStatus from the JSON that `PairStatus.as_dict` made, in this or another process. Pure.

Fields that a later release added are left out; those that an earlier release lacks have their
defaults. Anything else that does not fit raises KeyError, TypeError, ValueError or AttributeError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from twinbus.pairing.core.counters import EntityTotals
from twinbus.pairing.core.failover import EntityState
from twinbus.pairing.core.sides import SideState
from twinbus.pairing.core.status import (
    BacklogQueueStatus,
    EntityStatus,
    PairStatus,
    SideStatus,
)

_NAMES: Final[dict[type, frozenset[str]]] = {
    kind: frozenset(field.name for field in fields(kind))
    for kind in (BacklogQueueStatus, EntityStatus, EntityTotals, PairStatus, SideStatus)
}
_ENTITY_STATES: Final = {str(state): state for state in EntityState}


def read_status(document: Mapping[str, Any]) -> PairStatus:
    """Return the status that this document describes."""
    sides = document.get("sides") or {}
    read = {
        "entities": {path: read_entity(one) for path, one in document["entities"].items()},
        "backlog_queues": {
            path: BacklogQueueStatus(**_known(BacklogQueueStatus, one))
            for path, one in document["backlog_queues"].items()
        },
        "sides": {name: _side(one) for name, one in sides.items()},
        "forgotten": EntityTotals(**_known(EntityTotals, document.get("forgotten") or {})),
    }
    return PairStatus(**{**_known(PairStatus, document), **read})


def read_entity(document: Mapping[str, Any]) -> EntityStatus:
    """Return the status of one entity; an unknown state is a KeyError."""
    names = _NAMES[EntityStatus]
    # The same release wrote it, as nearly always: a page reads thousands of these a second.
    is_whole = len(document) == len(names) and document.keys() <= names
    known = dict(document) if is_whole else _known(EntityStatus, document)
    known["state"] = _ENTITY_STATES[known["state"]]
    return EntityStatus(**known)


def _side(document: Mapping[str, Any]) -> SideStatus:
    known = _known(SideStatus, document)
    return SideStatus(**{**known, "state": SideState(known["state"])})


def _known(kind: type, document: Mapping[str, Any]) -> dict[str, Any]:
    names = _NAMES[kind]
    return {name: value for name, value in document.items() if name in names}
