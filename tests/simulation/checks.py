"""The checkers: what must be true of every message once the world has come to rest.

conservation   what an application was told is stored is in the primary, or dead-lettered with a
               reason; deleting an entity with its messages is its owner's own doing
fidelity       each copy is the message that was sent
duplicates     only from the windows that docs/guarantees names; none with duplicate detection
retries        bounded by the options
ledger         an attempt that the ledger calls failed stored nothing
order          strict, where it is promised

night/checks.py has those of bad nights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.messages import differences
from tests.simulation.night.checks import check_drain, check_patience
from tests.simulation.plan import EntityPlan
from tests.simulation.truth import Call, Deed, serial_of
from twinbus.amqp.message import decode_properties, split
from twinbus.broker.journal import StoredMessage
from twinbus.broker.messages.rendering import render
from twinbus.pairing.core.attempts import LATE_PAUSE_S, RetryPolicy, call_limit_s
from twinbus.pairing.core.secondary import FIRST_PACE_S, LONGEST_PACE_S

if TYPE_CHECKING:
    from tests.simulation.world import World

Stored = tuple[StoredMessage, bytes]

EXPIRED: Final = "TTLExpiredException"
TURNS_FIRST: Final = 4
"""Turns at the first pace, before the pauses grow."""

GRACE_S: Final = 0.5
"""An attempt that its bound cuts off ends a moment later."""

SPLITS_MAX: Final = 4
"""Times that a batch of a few messages can be halved, and one."""


def check_all(world: World) -> None:
    """Look at everything; what is wrong becomes a violation."""
    for check in (
        check_conservation, check_fidelity, check_duplicates, check_calls, check_forwards,
        check_order, check_patience, check_drain,
    ):  # fmt: skip
        for text in check(world):
            world.violation(check.__name__.removeprefix("check_"), text)


def check_conservation(world: World) -> Iterator[str]:
    """Everything that an application was told is stored is somewhere."""
    found: dict[int, list[str]] = {}
    for entity in world.plan.entities:
        for _, payload in in_primary(world, entity):
            found.setdefault(serial_of(payload), []).append(entity.path)
    for path in world.backlog_paths:
        for stored, payload in world.secondary.dead_letters(path):
            serial = serial_of(payload)
            reason = str((stored.overrides or {}).get("DeadLetterReason"))
            found.setdefault(serial, []).append(f"dead-lettered, {reason}")
            if not _may_be_dead(world, serial, reason):
                yield f"#{serial} is dead-lettered in the backlog: {stored.overrides}"
    backlog = {path.lower() for path in world.backlog_paths}
    for call in world.truth.calls:
        for serial in sorted(call.stored):
            was_deleted = world.truth.deleted.get(serial, set()) & {call.path.lower(), *backlog}
            if serial not in found and not was_deleted:
                yield f"#{serial} to {call.path} was stored by call {call.number} and is LOST"
    for serial, places in found.items():
        path = world.truth.originals[serial].path
        strays = [place for place in places if place != path and "dead" not in place]
        if strays:
            yield f"#{serial} was sent to {path} and is in {strays}"


def _may_be_dead(world: World, serial: int, reason: str) -> bool:
    original = world.truth.originals[serial]
    if reason == "DestinationNotFound":
        return original.path.lower() in world.truth.ever_deleted
    if reason == "TimeToLiveExpired":
        return world.options.ttl_policy == "remaining" and original.ttl_ms > 0
    return False


def check_fidelity(world: World) -> Iterator[str]:
    """Every copy on the primary is the message that was sent."""
    remaining_ttl = world.options.ttl_policy == "remaining"
    ids: dict[int, object] = {}
    # One that went straight to its entity was only encoded, by the SDK itself.
    travelled = {copy.serial for copy in world.truth.copies if copy.deed.kind == "forward"}
    for entity in world.plan.entities:
        for stored, payload in in_primary(world, entity):
            serial = serial_of(payload)
            original = world.truth.originals[serial]
            if serial not in travelled and original.message_id is not None:
                continue
            wire = world.encoded(original.message)
            for text in differences(original, wire, stored, payload, remaining_ttl=remaining_ttl):
                yield f"#{serial} in {entity.path}: {text}"
            message_id = decode_properties(split(render(payload, stored)).properties).message_id
            if ids.setdefault(serial, message_id) != message_id:
                yield f"#{serial} has the ids {ids[serial]!r} and {message_id!r}"


def check_duplicates(world: World) -> Iterator[str]:
    """None with duplicate detection; elsewhere none but from a window."""
    for entity in world.plan.entities:
        counts = Counter(serial_of(payload) for _, payload in in_primary(world, entity))
        for serial, count in counts.items():
            if count > 1 and entity.deduplicates:
                yield f"#{serial} is {count} times in {entity.path}, which detects duplicates"
    for call in world.truth.calls:
        done: dict[int, Deed] = {}
        for deed in call.deeds:
            for serial in deed.performed:
                before = done.get(serial)
                if before is not None:
                    yield (
                        f"call {call.number}: #{serial} was acknowledged ({before.kind} to"
                        f" {before.path}) and stored once more ({deed.kind} to {deed.path})"
                    )
            if deed.answered:
                done |= dict.fromkeys(deed.performed, deed)


def check_forwards(world: World) -> Iterator[str]:
    """A message is forwarded again only if a fault hit one of the two attempts (W3).

    A syphon that knew that the primary has a message never sends it again, whatever was lost: not
    for the same delivery, and not when it is delivered to the same process again.
    """
    accepted: dict[tuple[object, ...], Deed] = {}
    for deed in world.truth.deeds:
        if deed.kind != "forward":
            continue
        assert deed.handover is not None
        source = deed.handover.source
        before = accepted.get(source)
        if before is not None:
            knew = before.who == deed.who and before.answered_at < deed.began_at
            # The later one may hold a lock that a fault has freed, and not know it yet.
            was_hit = before.was_hit() or deed.handover.was_hit_before(deed.began_at)
            if knew or not was_hit:
                yield f"{deed.who} forwards {source} again, which {before.who} had done"
        if deed.answered:
            accepted[source] = deed


def check_calls(world: World) -> Iterator[str]:
    """Retries are bounded, and the ledger tells the truth."""
    policy = RetryPolicy.of(world.options)
    # A twin is one place more to divert to.
    queues = world.options.backlog_queue_count + (world.options.twins is not None)
    total = policy.retries
    bound_s = call_limit_s(policy)
    for call in world.truth.calls:
        if call.outcome == "killed":
            continue
        # In its turns a waiting call tries each queue; the turns of a call are a pause apart.
        turns = math.log2(1 + (call.timeout_s or bound_s) / FIRST_PACE_S) + TURNS_FIRST
        turns += (call.timeout_s or bound_s) / LONGEST_PACE_S
        diverts_max = math.ceil(queues * (1 + turns)) + total
        sends_max = 1 + 2 * total + diverts_max
        if policy.total is None:
            sends_max += math.ceil((call.timeout_s or bound_s) / LATE_PAUSE_S)
        counts = Counter((operation, message_id) for operation, _, message_id in call.attempts)
        for (operation, message_id), count in counts.items():
            limit = (sends_max if operation == "send" else diverts_max) * SPLITS_MAX
            if count > limit:
                yield f"call {call.number}: {count} attempts to {operation} {message_id}"
        if call.timeout_s is None and call.ended is not None:
            took_s = call.ended - call.began
            if took_s > bound_s + GRACE_S:
                yield f"call {call.number} took {took_s:.1f} s without a timeout, not {bound_s:.1f}"
        if len(call.originals) == 1:
            yield from _ledger_lies(world, call)


def _ledger_lies(world: World, call: Call) -> Iterator[str]:
    """Where the ledger says of the one message of a call what is not so."""
    for kind in ("send", "divert"):
        outcomes = [outcome for operation, outcome, _ in call.attempts if operation == kind]
        deeds = [deed for deed in call.deeds if deed.kind == kind]
        stored = sum(bool(deed.performed) for deed in deeds)
        possible = sum(outcome != "failed" for outcome in outcomes)
        if not outcomes.count("ok") <= stored <= possible:
            yield (
                f"call {call.number}: the ledger says {outcomes} of its attempts to {kind},"
                f" {stored} of which were stored"
            )


def check_order(world: World) -> Iterator[str]:
    """Under strict order the first copies of a session's messages stand as they were sent."""
    if world.options.session_order != "strict":
        return
    told = {serial for call in world.truth.calls for serial in call.stored}
    for entity in world.plan.entities:
        last: dict[str | None, int] = {}
        seen: set[int] = set()
        for stored, payload in in_primary(world, entity):
            serial = serial_of(payload)
            if serial in seen or serial not in told:
                continue
            seen.add(serial)
            before = last.get(stored.session_id, 0)
            if serial < before:
                yield f"session {stored.session_id} of {entity.path}: #{before} before #{serial}"
            last[stored.session_id] = max(before, serial)


def in_primary(world: World, entity: EntityPlan) -> list[Stored]:
    """What is in an entity, and what expired there."""
    return world.primary.contents(entity.path) + world.primary.dead_letters(entity.path)
