"""Decides what `twinbus twins` does for each entity: create, finish, check or refuse. Pure.

A namesake without the mark may be someone's live traffic (two namespaces that are each other's
secondary), so it is refused: it is never written to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from twinbus.pairing.core.backlog import LEASE_MARK
from twinbus.pairing.core.twin_settings import (
    Kind,
    TwinDifference,
    TwinSettings,
    twin_differences,
)
from twinbus.servicebus.names import FOREVER_MS, STANDARD_MESSAGE_BYTES, parse_backlog_path
from twinbus.servicebus.twins import (
    PATTERN_CHARACTERS,
    is_listed,
    is_named,
    is_twin_of,
    is_unfinished_twin_of,
    marked_label,
)

PREMIUM: Final = "Premium"

STANDARD_MESSAGE_KB: Final = STANDARD_MESSAGE_BYTES // 1_024
STANDARD_SIZE_MAX_MB: Final = 5_120
STANDARD_PARTITIONS: Final = 16
"""A Standard namespace reports the size of a partitioned entity times this, and takes it without.
"""

SCRATCH: Final = ("twinbus-doctor-", "twinbus-verify-")
"""Names of scratch entities begin with these."""

Entities = Mapping[str, TwinSettings]
"""Queues and topics of a namespace by path in lower case."""


class Step(StrEnum):
    CREATE = "create"
    FINISH = "finish"
    """Our own creation was interrupted."""
    CHECK = "check"
    """The twin is there and marked."""
    REFUSE = "refuse"
    LEAVE_OUT = "leave out"
    """Only a pattern selected it, and it gets no twin."""


@dataclass(frozen=True, slots=True)
class PlannedTwin:
    """What to do for one entity."""

    entity: TwinSettings
    step: Step
    why: str = ""
    """Of a refusal, and of what is left out."""
    there: TwinSettings | None = None
    """The namesake, if there is one."""

    @property
    def path(self) -> str:
        return self.entity.name


def selected(entities: Entities, listed: Collection[str]) -> dict[str, TwinSettings]:
    """Return the entities that names and patterns select; never a queue of Twinbus itself."""
    return {
        key: entity
        for key, entity in entities.items()
        if is_listed(listed, key) and not is_of_twinbus(entity.name)
    }


def missing(entities: Entities, listed: Collection[str]) -> list[str]:
    """Return the names, not the patterns, that no entity has or may be selected by."""
    found = selected(entities, listed)
    names = (one.strip("/") for one in listed if PATTERN_CHARACTERS.isdisjoint(one))
    return [name for name in names if name.lower() not in found]


def is_of_twinbus(path: str) -> bool:
    """Whether a queue is a backlog queue, a lease queue or a scratch entity of some command."""
    name = path.lower()
    is_lease = name.rpartition("/")[2] == LEASE_MARK
    return is_lease or name.startswith(SCRATCH) or parse_backlog_path(path) is not None


def twins_of(secondary: Entities, label: str) -> set[str]:
    """Return the paths of all marked twins, in lower case."""
    return {key for key, one in secondary.items() if is_twin_of(one.user_metadata, label)}


def plan_twins(
    chosen: Entities,
    secondary: Entities,
    listed: Collection[str],
    *,
    label: str,
    secondary_label: str,
    with_sessions: bool,
) -> list[PlannedTwin]:
    """Return what to do for each chosen entity; the destinations of forwarding come first."""
    plans: dict[str, PlannedTwin] = {}
    ready = twins_of(secondary, label)
    for key in _destinations_first(chosen):
        entity = chosen[key]
        plan = _planned(entity, secondary.get(key), label, secondary_label, with_sessions)
        if plan.step in {Step.CREATE, Step.FINISH}:
            gone = sorted(entity.forwards_to - ready)
            if gone:
                do = f"it forwards to {gone[0]}, which has no twin: name {gone[0]} too"
                plan = replace(plan, step=Step.REFUSE, why=do)
            else:
                ready.add(key)
        if plan.step is Step.REFUSE and plan.there is None and not is_named(listed, key):
            plan = replace(plan, step=Step.LEAVE_OUT)
        plans[key] = plan
    return [plans[key] for key in plans]


def _planned(
    entity: TwinSettings,
    there: TwinSettings | None,
    label: str,
    secondary_label: str,
    with_sessions: bool,
) -> PlannedTwin:
    def refused(why: str) -> PlannedTwin:
        return PlannedTwin(entity, Step.REFUSE, why, there)

    if (other := marked_label(entity.user_metadata)) is not None:
        return replace(refused(f"it is itself the twin of an entity of {other}"), there=None)
    if there is not None:
        if problem := unusable(entity, there, label, secondary_label):
            return refused(problem)
        if is_twin_of(there.user_metadata, label):
            return PlannedTwin(entity, Step.CHECK, there=there)
    if entity.has_sessions and not with_sessions:
        where = "it" if entity.requires_session else "a subscription of it"
        do = "which may then be open on both sides; if that is fine, add --with-sessions"
        return refused(f"{where} has sessions, {do}")
    return PlannedTwin(entity, Step.CREATE if there is None else Step.FINISH, there=there)


def unusable(
    entity: TwinSettings, there: TwinSettings, label: str, secondary_label: str
) -> str | None:
    """Return why a namesake may not be written to, with the command to run; None: it may be."""
    path = there.name
    if there.kind is not entity.kind:
        return f"{path} is a {there.kind} in {secondary_label} and a {entity.kind} in the primary"
    other = marked_label(there.user_metadata)
    if other is None:
        return (
            f"{path} in {secondary_label} does not have the mark of a twin, so its messages may be"
            f" someone else's; if they are not, run `twinbus twins adopt {path}`"
        )
    is_ours = is_twin_of(there.user_metadata, label) or is_unfinished_twin_of(
        there.user_metadata, label
    )
    return None if is_ours else f"{path} in {secondary_label} is the twin of an entity of {other}"


def _destinations_first(chosen: Entities) -> Iterator[str]:
    done: set[str] = set()

    def visit(key: str) -> Iterator[str]:
        if key in done or key not in chosen:
            return
        # Before its destinations, so that a circle ends.
        done.add(key)
        for destination in sorted(chosen[key].forwards_to):
            yield from visit(destination)
        yield key

    for key in sorted(chosen):
        yield from visit(key)


def differences_that_matter(
    entity: TwinSettings, twin: TwinSettings, twins: Collection[str], sku: str | None
) -> list[TwinDifference]:
    """Return the differences; what the tier of the secondary does not allow is only a remark."""
    best = to_create(entity, twins, sku)
    unavoidable = {one.says for one in twin_differences(entity, best, twins)}
    found = [
        replace(one, is_error=False, says=f"{one.says} (the tier of the secondary allows no more)")
        if one.is_error and one.says in unavoidable
        else one
        for one in twin_differences(entity, twin, twins)
    ]
    return sorted(found, key=lambda one: not one.is_error)


def to_create(entity: TwinSettings, twins: Collection[str], sku: str | None) -> TwinSettings:
    """Return the settings that an entity's twin gets in a namespace of a tier; None: not known.

    It never deletes itself, because it is idle while the primary works. Dead letters are forwarded
    only to another twin.
    """
    dead_letters = entity.forward_dead_letters_to
    changed = replace(
        entity,
        auto_delete_on_idle_ms=FOREVER_MS,
        forward_dead_letters_to=dead_letters if (dead_letters or "").lower() in twins else None,
        subscriptions={
            key: to_create(one, twins, sku) for key, one in entity.subscriptions.items()
        },
    )
    if entity.kind is Kind.SUBSCRIPTION or sku is None:
        return changed
    if sku == PREMIUM:
        return replace(changed, enable_partitioning=False)
    size_mb, largest_kb = entity.max_size_mb or 0, entity.max_message_size_kb
    if entity.enable_partitioning and size_mb > STANDARD_SIZE_MAX_MB:
        size_mb //= STANDARD_PARTITIONS
    return replace(
        changed,
        max_message_size_kb=None if largest_kb is None else min(largest_kb, STANDARD_MESSAGE_KB),
        max_size_mb=min(size_mb, STANDARD_SIZE_MAX_MB) or None,
    )
