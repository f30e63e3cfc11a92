"""What must be true of worlds with twins and consumers, whatever failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.checks import check_calls, check_duplicates, check_forwards
from tests.simulation.flow.plan import NAMESAKE
from tests.simulation.flow.truth import FOREIGN, FOREIGN_MESSAGES, Given
from tests.simulation.truth import serial_of
from twinbus.broker.engine.settlement import SettlementOutcome
from twinbus.pairing.receiving.receivers import ANSWER_LEAST_S
from twinbus.pairing.receiving.side import SETTLE_ANSWERS

if TYPE_CHECKING:
    from tests.simulation.flow.world import FlowWorld

SLACK_S: Final = 5.0
"""What a receive gap may have beyond the failover interval and the attempts that come before."""

ASKED: Final = {
    "complete": SettlementOutcome.COMPLETE,
    "abandon": SettlementOutcome.ABANDON,
    "defer": SettlementOutcome.DEFER,
    "dead-letter": SettlementOutcome.DEAD_LETTER,
}


def check_flow(world: FlowWorld) -> Iterator[tuple[str, str]]:
    """Look at everything; yield what is wrong, with the name of the rule."""
    drained = list(check_namesake(world))
    yield from (("namesake", text) for text in drained)
    if drained:
        return  # The other rules do not know such messages.
    for check in (
        check_nothing_lost, check_unseen, check_settled_as_asked, check_twice, check_gap,
        check_duplicates, check_calls, check_forwards,
    ):  # fmt: skip
        for text in check(world):
            yield check.__name__.removeprefix("check_"), text


def check_nothing_lost(world: FlowWorld) -> Iterator[str]:
    """What was acknowledged to an application was handed out, or waits somewhere."""
    found = {one.serial for one in world.received.handed_out}
    for path in world.backlog_paths:
        found |= {serial_of(payload) for _, payload in world.secondary.dead_letters(path)}
    for entity in world.plan.entities:
        for side in world.namespaces.values():
            stored = side.contents(entity.path) + side.dead_letters(entity.path)
            # In a foreign queue, too: a sender may not know yet that it is no twin.
            found |= {serial_of(payload) for _, payload in stored if b"#" in payload}
    for call in world.truth.calls:
        for serial in sorted(call.stored):
            if serial not in found and serial not in world.truth.deleted:
                yield f"#{serial} to {call.path} was stored by call {call.number} and is LOST"


def check_unseen(world: FlowWorld) -> Iterator[str]:
    """A receiver completes a message unseen only if it completed the other side's copy before, and
    the twin's one is marked as ambiguous."""
    completed: dict[tuple[str, int | None], list[Given]] = {}
    for one in world.received.given.values():
        if one.performed is SettlementOutcome.COMPLETE:
            completed.setdefault((one.who, one.serial), []).append(one)
    for one in world.received.given.values():
        is_unseen = one.handed_out_at is None and one.performed not in (
            None,
            SettlementOutcome.RELEASE,
        )
        if not is_unseen:
            continue
        others = [
            other
            for other in completed.get((one.who, one.serial), ())
            if other.side != one.side
            and other.handed_out_at is not None
            and (other.performed_at or 0.0) <= (one.performed_at or 0.0)
            and (one.is_ambiguous or other.is_ambiguous)
        ]
        if one.performed is not SettlementOutcome.COMPLETE or not others:
            yield f"{one} was not handed out, and its receiver did: {one.performed}"


def check_settled_as_asked(world: FlowWorld) -> Iterator[str]:
    """What was handed out is settled as its consumer asked, or not at all."""
    for one in world.received.handed_out:
        wanted = None if one.asked is None else ASKED[one.asked]
        if one.performed not in (None, wanted):
            yield f"{one} was handed out, {one.asked} was asked for, and {one.performed} done"
        if one.confirmed_at is not None and one.performed is not wanted:
            yield f"{one}: {one.asked} was confirmed, and {one.performed} done"


def check_twice(world: FlowWorld) -> Iterator[str]:
    """One place is handed out again only if its settlement failed or gave it back; the second copy
    of a message that the same receiver has completed is not handed out."""
    ended: dict[tuple[str, str, int], Given] = {}
    completed: dict[tuple[str, int | None, str], Given] = {}
    seen: dict[tuple[str, tuple[str, str, int]], Given] = {}
    for one in world.received.handed_out:
        before = ended.get(one.place)
        at = one.handed_out_at or 0.0
        # One that was delivered before, and waited in a buffer until its lock had ended, may be.
        if before is not None and (before.confirmed_at or 0.0) <= one.at:
            yield f"{one} is handed out again; {before} was confirmed as {before.asked}"
        other = completed.get((one.who, one.serial, _other(one.side)))
        if (
            other is not None
            and (other.confirmed_at or 0.0) < at
            and (one.is_ambiguous or other.is_ambiguous)
            and (one.who, one.place) not in seen
        ):
            yield f"{one} is handed out; the same receiver had completed {other}"
        seen[one.who, one.place] = one
        if one.confirmed_at is not None and one.asked in ("complete", "dead-letter"):
            ended[one.place] = one
        if one.confirmed_at is not None and one.asked == "complete":
            completed[one.who, one.serial, one.side] = one


def _other(side: str) -> str:
    return "primary" if side == "secondary" else "secondary"


def check_namesake(world: FlowWorld) -> Iterator[str]:
    """A queue without the mark is never received from; one that never had it is not written to."""
    for one in world.received.given.values():
        if one.serial is None:
            yield f"{one} is foreign, and was delivered to a receiver"
    for path in sorted(world.not_ours):
        stored = [payload for _, payload in world.secondary.contents(path)]
        theirs = [payload for payload in stored if FOREIGN in payload]
        if len(theirs) != FOREIGN_MESSAGES:
            yield f"{path} of the secondary has {len(theirs)} of its {FOREIGN_MESSAGES} messages"
        if path == NAMESAKE.path and len(stored) > len(theirs):
            yield f"{path} of the secondary was written to"


def check_gap(world: FlowWorld) -> Iterator[str]:
    """In a calm world whatever is sent in the outage is received within a bound."""
    if not world.plan.is_calm:
        return
    [outage] = world.plan.faults
    options = world.options
    sent_s = options.failover_interval_s + 2 * options.attempt_timeout_s
    # A consumer that settles a message of the primary as that fails waits for the answer.
    settled_s = SETTLE_ANSWERS * max(ANSWER_LEAST_S, options.attempt_timeout_s)
    bound_s = max(sent_s, settled_s) + SLACK_S
    first: dict[int | None, float] = {}
    for one in world.received.handed_out:
        first.setdefault(one.serial, one.handed_out_at or 0.0)
    for call in world.truth.calls:
        in_outage = outage.at <= call.began <= outage.at + outage.lasts_s - bound_s
        # One message with a session takes the others of its call to the backlog.
        has_session = any(original.session_id is not None for original in call.originals)
        if not in_outage or call.outcome != "returned" or has_session:
            continue
        for original in call.originals:
            took_s = first.get(original.serial, 1e9) - call.began
            if not original.scheduled_for_ms and took_s > bound_s:
                text = f"#{original.serial} of call {call.number} was received after {took_s:.1f} s"
                yield f"{text}, not {bound_s:g}"
