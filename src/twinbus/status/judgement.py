"""What a status means: what needs attention, worst first, and whether sends are safe. Pure.

The one judgement that `twinbus status`, `top`, `check`, the page and the metrics show, each in its
own form: they cannot contradict each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from twinbus.status.document import (
    IN_ROTATION,
    LEASE_GONE,
    LEASED,
    EntityState,
    EntityStatus,
    HostStatus,
    PairStatus,
    SyphonQueueStatus,
    SyphonStatus,
)
from twinbus.status.receiving import processing_troubles, receiving_troubles
from twinbus.status.twins import twin_troubles
from twinbus.wording import ago, counted, duration, named, plain, short, visible

HEALTHY: Final = EntityState.HEALTHY
"""A name of its own: member lookup in an enum is slow."""

RAISING: Final = "raising"
"""What people read of an entity whose calls raised in the last minute."""

STATES: Final = ("unusable", RAISING, "failed over", "suspect", "healthy")
"""The states of an entity, worst first."""

RESUME: Final = "the syphon is paused: `twinbus syphon resume` resumes it"
PUMP_THEM: Final = "start the syphon without --queues, or with a larger number"


class Severity(IntEnum):
    """How bad a finding is; the worse, the higher."""

    ATTENTION = 1
    """Something is out of the ordinary."""
    EXPOSED = 2
    """Sends depend on the primary alone."""
    RAISES = 3
    """Sends raise whatever their callers do."""


@dataclass(frozen=True, slots=True)
class Concern:
    """One thing that needs attention."""

    kind: str
    """For programs: `side`, `faulted`, `exposed`, `frozen`, `paused`, `obstacle`, `no pump`,
    `receivers`, `processors`, `twins`, `ledger` or the state of an entity."""
    severity: Severity
    text: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a status means."""

    concerns: tuple[Concern, ...]
    """What needs attention, worst first."""
    is_safe: bool = True
    """Whether every send is stored somewhere, or retried until it is."""
    sends: str = ""
    """Where sends go now, in one sentence; empty for a syphon, which sends nothing of its own."""
    states: dict[str, list[str]] = field(default_factory=dict)
    """The words for each entity about which there is something to say, by path."""
    exposed: str = ""
    """Why no backlog queue can take over; empty: one can, as far as is known."""

    @property
    def attention(self) -> list[str]:
        return [concern.text for concern in self.concerns]


def judgement_of(status: HostStatus, now: float) -> Judgement:
    """Return what the status of a pair or a syphon means at time `now`, in unix seconds."""
    if isinstance(status, SyphonStatus):
        return Judgement(tuple(_syphon_concerns(status)))
    # Nearly all of thousands of entities have nothing to say, and a page judges every second.
    troubled = [one for one in status.entities.values() if not is_quiet(one)]
    exposed = _exposed(status, now)
    concerns = sorted(_concerns(status, troubled, exposed), key=lambda one: -one.severity)
    dangers = tuple(_dangers(status, troubled, exposed))
    safe = "" if dangers else f"sends are safe: {_ways(status, troubled, now)}"
    sends = safe or f"sends are NOT safe: {dangers[0]}"
    words = {one.path: states_of(one) for one in troubled}
    return Judgement(tuple(concerns), not dangers, sends, words, exposed)


def rank(states: Iterable[str]) -> int:
    """Return the place of an entity in a list, worst first; its worst state counts."""
    return min(STATES.index(one) if one in STATES else len(STATES) for one in states)


def states_of(entity: EntityStatus) -> list[str]:
    """Return the state of an entity and what holds it, in the words for people."""
    # An unusable entity raises by definition.
    is_raising = bool(entity.raising) and entity.state is not EntityState.UNUSABLE
    words = [hold for hold in ("forced", "frozen") if getattr(entity, hold)]
    words += [RAISING] if is_raising else []
    is_hidden = is_raising and entity.state is EntityState.HEALTHY
    return words[::-1] if is_hidden else [str(entity.state), *words]


def is_quiet(entity: EntityStatus) -> bool:
    """Whether there is nothing to say about an entity but its counts."""
    is_held = entity.forced or entity.frozen
    return entity.state is HEALTHY and not entity.raising and not is_held


def ready_queues(status: PairStatus) -> list[str]:
    """Return the backlog queues that can take a message now, as far as is known."""
    # A queue in rotation has a reason while the secondary cannot be reached.
    queues = status.backlog_queues.items()
    return [path for path, one in queues if one.state == IN_ROTATION and not one.reason]


def obstacles(
    queues: Mapping[str, SyphonQueueStatus], *, is_standing_by_left_out: bool = False
) -> list[str]:
    """Return what blocks the queues of a syphon, and where: problems and held destinations."""
    found: dict[str, list[str]] = {}
    for path, queue in queues.items():
        for what, why in queue.obstacles.items():
            if is_standing_by_left_out and why.startswith((LEASED, LEASE_GONE)):
                continue
            left_s = queue.gives_up_in_s.get(what)
            more = "" if left_s is None else f" (dead-lettered in {duration(left_s)})"
            found.setdefault(f"{what}: {plain(why)}{more}", []).append(path)
    return [
        f"{reason} [{where[0] if len(where) == 1 else f'{len(where)} queues'}]"
        for reason, where in found.items()
    ]


def no_pump_text(queues: Sequence[str]) -> str:
    verb = "backlog queue has" if len(queues) == 1 else "backlog queues have"
    return f"{len(queues)} {verb} no pump here: {', '.join(queues)}"


def _syphon_concerns(status: SyphonStatus) -> Iterator[Concern]:
    if status.paused:
        yield Concern("paused", Severity.ATTENTION, RESUME)
    for text in obstacles(status.queues, is_standing_by_left_out=True):
        yield Concern("obstacle", Severity.ATTENTION, text)
    if status.without_pump:
        text = f"{no_pump_text(status.without_pump)}; {PUMP_THEM}"
        yield Concern("no pump", Severity.ATTENTION, text)
    yield from _attention("twins", twin_troubles(status))


def _attention(kind: str, texts: Iterable[str]) -> Iterator[Concern]:
    for text in texts:
        yield Concern(kind, Severity.ATTENTION, text)


def _concerns(
    status: PairStatus, troubled: Sequence[EntityStatus], exposed: str
) -> Iterator[Concern]:
    for name, side in status.sides.items():
        if side.reason:
            severity = Severity.RAISES if name == "primary" else Severity.ATTENTION
            text = f"the {name} is {side.state}: {short(side.reason)}"
            yield Concern("side", severity, text)
    if status.faulted and not any(side.reason for side in status.sides.values()):
        text = f"the pair is faulted: {short(status.faulted)}"
        yield Concern("faulted", Severity.RAISES, text)
    if exposed:
        yield Concern("exposed", Severity.EXPOSED, exposed)
    yield from _entity_concerns(troubled)
    if any(queue.paused for queue in (status.syphon or {}).values()):
        yield Concern("paused", Severity.ATTENTION, RESUME)
    yield from _attention("receivers", receiving_troubles(status.receivers))
    yield from _attention("processors", processing_troubles(status.processors))
    yield from _attention("twins", twin_troubles(status))
    if status.ledger_unrecorded:
        text = f"the ledger could not record {status.ledger_unrecorded:,} lines"
        yield Concern("ledger", Severity.ATTENTION, text)


def _exposed(status: PairStatus, now: float) -> str:
    """Return why no backlog queue can take over; empty: one can."""
    if not status.protected:
        return "UNPROTECTED: there is no backlog queue to divert to"
    if status.verification_error:
        why = short(status.verification_error)
        return f"NOT protected: no backlog queue answers ({why}), {_verified(status, now)}"
    if ready_queues(status):
        return ""
    reasons = dict.fromkeys(
        short(one.reason) for one in status.backlog_queues.values() if one.reason
    )
    why = next(iter(reasons), "none is in the rotation")
    return f"NOT protected: no backlog queue can be used now ({why})"


def _entity_concerns(troubled: Sequence[EntityStatus]) -> Iterator[Concern]:
    raising = [one for one in troubled if one.raising and one.state is not EntityState.UNUSABLE]
    unusable = [one for one in troubled if one.state is EntityState.UNUSABLE]
    if unusable:
        yield Concern("unusable", Severity.RAISES, f"unusable: {_paths(unusable)}")
    if raising:
        text = f"raising: {_paths(raising)} {_raised(raising)}"
        yield Concern("raising", Severity.ATTENTION, text)
    for state in (EntityState.FAILED_OVER, EntityState.SUSPECT):
        if found := [one for one in troubled if one.state is state]:
            text = f"{state}: {_paths(found)}{_evidence(found)}"
            yield Concern(str(state), Severity.ATTENTION, text)
    if frozen := [one for one in troubled if one.frozen]:
        severity = Severity.EXPOSED if any(map(_is_stuck, frozen)) else Severity.ATTENTION
        yield Concern("frozen", severity, f"frozen by hand: {_paths(frozen)}")


def _evidence(entities: Sequence[EntityStatus]) -> str:
    """Return who else says so, of the first entity of which others say it; empty: nobody."""
    said = next((one.evidence for one in entities if one.evidence), "")
    return f" (also: {plain(said)})" if said else ""


def _verified(status: PairStatus, now: float) -> str:
    if status.verified_at is None:
        return "not verified yet" if not status.verification_error else "never verified"
    word = "last verified" if status.verification_error else "verified"
    return f"{word} {ago(now - status.verified_at)}"


def _dangers(status: PairStatus, troubled: Sequence[EntityStatus], exposed: str) -> Iterator[str]:
    """Yield why some send may raise although its caller waits."""
    primary = status.sides.get("primary")
    if status.faulted or (primary is not None and primary.reason):
        why = status.faulted or f"the primary is {primary.state if primary else 'faulted'}"
        yield f"every call raises ({visible(why)})"
    if unusable := [one for one in troubled if one.state is EntityState.UNUSABLE]:
        yield f"those to {_paths(unusable)} raise until a ping is answered"
    if raising := [one for one in troubled if one.raising]:
        yield f"those to {_paths(raising)} raise {_raised(raising)}"
    if not status.protected:
        yield "they depend on the primary alone, because there is no backlog queue"
    elif exposed:
        yield (
            "they depend on the primary alone, because no backlog queue can be used now; diverted"
            " sends wait for one, and raise at the end of their timeout"
        )
    if stuck := [one for one in troubled if _is_stuck(one)]:
        yield f"those to {_paths(stuck)} depend on the primary alone until `twinbus unfreeze`"


def _ways(status: PairStatus, troubled: Sequence[EntityStatus], now: float) -> str:
    parts = []
    if diverted := [one for one in troubled if one.state is EntityState.FAILED_OVER]:
        to_twin = [one for one in diverted if one.twin is not None and one.twin.is_used]
        if to_twin:
            parts.append(f"those to {_paths(to_twin)} go to their twins")
        if to_backlog := [one for one in diverted if one not in to_twin]:
            parts.append(f"those to {_paths(to_backlog)} go to the backlog")
    if suspects := [one for one in troubled if one.state is EntityState.SUSPECT]:
        left_s = max(one.fails_over_in_s or 0.0 for one in suspects)
        parts.append(
            f"those to {_paths(suspects)} are retried, and diverted within"
            f" {duration(left_s)} (a call whose timeout ends before raises)"
        )
    ready = counted(len(ready_queues(status)), "backlog queue")
    # Where every entity has failed over or is suspect, the primary takes nothing.
    moved = sum(one.state is not HEALTHY for one in troubled)
    takes_some = not moved or moved < len(status.entities)
    rest = f"the primary takes {'the rest' if parts else 'them'}, " if takes_some else ""
    return "; ".join([*parts, f"{rest}{ready} can take over, {_verified(status, now)}"])


def _raised(entities: Sequence[EntityStatus]) -> str:
    worst = max(entities, key=lambda one: one.raising)
    calls = counted(sum(one.raising for one in entities), "call")
    return f"({calls} in the last minute: {short(worst.raising_reason)})"


def _is_stuck(entity: EntityStatus) -> bool:
    """Whether its sends stay on the primary even if that fails."""
    return entity.frozen and entity.state in (EntityState.HEALTHY, EntityState.SUSPECT)


def _paths(entities: Iterable[EntityStatus]) -> str:
    return named([one.path for one in entities])
