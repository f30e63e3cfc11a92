"""The pairs of this host as people see them: `Board` turns answers into documents. Pure.

    board = Board(host="web-1")
    board.observe(answers, now)      once for each poll; `answers` come from `live`
    board.table.pairs                a ShownPair for each pair, by id
    headline_of(board.table.pairs.values(), now)

A document gets a new version only if something in it changed. A pair that ended is shown as gone
for an hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from twinbus.control.protocol import HostCard
from twinbus.page.core.model import (
    Headline,
    Obstacle,
    PairTable,
    SendBucket,
    ShownEntity,
    ShownEvent,
    ShownPair,
    ShownProof,
    ShownSyphon,
    as_json,
)
from twinbus.page.core.receiving import shown_receiving
from twinbus.page.core.timeline import UNKNOWN, EntitySpans, SendHistory, shown_state
from twinbus.status.document import (
    EntityStatus,
    HostStatus,
    PairStatus,
    SyphonStatus,
)
from twinbus.status.judgement import Judgement, judgement_of
from twinbus.status.twins import twins_text
from twinbus.wording import counted, duration, named, plain, visible

GONE_SHOWN_S: Final = 3_600.0
"""How long a pair that ended is shown."""

GONE_MAX: Final = 100
"""Pairs that ended to show at most: a program that restarts in a circle makes many."""

EVENTS_MAX: Final = 1_000
JUDGED_AGAIN_S: Final = 20.0
"""An answer that stays the same is judged again after this time: its texts say how old it is."""

NO_LONGER_RUNNING: Final = "no longer running"

PLAIN_TEXTS: Final = ("reason", "last_error", "raising_reason", "evidence", "pinger")
"""Texts of an entity that may hold anything."""

NAMED_MAX: Final = 3
"""Pairs or entities that the sentence names."""


PROVEN: Final = {"nothing lost": "nothing lost", "lost": "messages were LOST"}
"""What the headline says of a verdict."""


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """What one control socket answered."""

    id: str
    """Unique for each process and pair; the name of the socket."""
    card: HostCard | None
    """None: it has never answered."""
    status: HostStatus | None
    """None: there is no usable answer, and `why` says why."""
    why: str = ""
    number: int = 0
    """Differs if the answer differs from the last one of this host."""


class Board:
    """Everything observed on one host."""

    def __init__(self, host: str) -> None:
        self.table = PairTable()
        self.answers: dict[str, HostAnswer] = {}
        """The latest answer of each host that is there."""
        self.events: deque[ShownEvent] = deque(maxlen=EVENTS_MAX)
        """What happened, as observed; their numbers go up by 1."""
        self.event_count = 0
        self._host = host
        self._watched: dict[str, _HostHistory] = {}
        self._is_first = True

    def observe(self, answers: Iterable[HostAnswer], now: float) -> None:
        """Take what all hosts answered at time `now`; hosts that are not among them are gone."""
        self.answers = {answer.id: answer for answer in answers}
        for answer in self.answers.values():
            self._take(answer, now)
        for id_ in self._watched.keys() - self.answers.keys():
            self._gone(id_, now)
        self._forget(now)
        self._is_first = False

    def add_event(
        self, pair: str, kind: str, text: str, now: float, *,
        path: str | None = None, level: str = "info", who: str | None = None,
    ) -> None:  # fmt: skip
        self.event_count += 1
        self.events.append(
            ShownEvent(
                number=self.event_count, t=now, pair=pair, host=self._host, kind=kind, path=path,
                text=text, level=level, who=who,
            )
        )  # fmt: skip

    def _take(self, answer: HostAnswer, now: float) -> None:
        watched = self._watched.get(answer.id)
        if watched is None:
            watched = self._watched[answer.id] = _HostHistory(answer.id, self._host)
            if not self._is_first and answer.card is not None:
                text = f"{answer.card.kind} {answer.card.name} runs, pid {answer.card.pid}"
                self.add_event(answer.card.name, "started", text, now)
        before = watched.document
        if answer.status is None or answer.card is None:
            document = watched.silent(answer, now)
            if before is not None and before.state != "silent":
                text = f"{document.name} does not answer: {answer.why}"
                self.add_event(document.name, "silent", text, now, level="error")
        elif watched.is_shown(answer, now):
            return
        else:
            document = watched.answered(answer, answer.card, answer.status, now)
            self._note_changes(before, document, now)
        self._keep(answer.id, document)

    def _note_changes(self, before: ShownPair | None, after: ShownPair, now: float) -> None:
        if before is None:
            return
        if before.protected != after.protected:
            text, level = f"{after.name}: protected again", "info"
            if not after.protected:
                text, level = f"{after.name}: UNPROTECTED: {after.why}", "error"
            self.add_event(after.name, "protection", text, now, level=level)
        old = {entity.path: entity for entity in before.entities}
        for entity in after.entities:
            was, path, spans = old.get(entity.path), entity.path, entity.spans
            state = shown_state(entity, entity.states)
            before_it = None if was is None else shown_state(was, was.states)
            if before_it in (None, state):
                continue
            reason = entity.raising_reason if state == "raising" else entity.reason
            why = f" ({reason})" if reason else ""
            # After a gap it is not known from which state it came.
            is_seen = len(spans) < 2 or spans[-2][2] != UNKNOWN
            text = f"{path}: {before_it} -> {state}{why}"
            text = text if is_seen else f"{path}: {state}{why}"
            level = "info" if state == "healthy" else "warning"
            at = spans[-1][0] if spans else now
            self.add_event(after.name, "state", text, at, path=path, level=level)

    def _gone(self, id_: str, now: float) -> None:
        watched = self._watched[id_]
        if watched.document is None or watched.document.state == "gone":
            return
        document = watched.gone(watched.document, now)
        text = f"{document.name}: {NO_LONGER_RUNNING}, pid {document.pid}"
        self.add_event(document.name, "gone", text, now, level="warning")
        self._keep(id_, document)

    def _forget(self, now: float) -> None:
        documents = (watched.document for watched in self._watched.values())
        gone = [pair for pair in documents if pair is not None and pair.state == "gone"]
        gone.sort(key=lambda pair: -pair.state_since)
        for position, pair in enumerate(gone):
            if position >= GONE_MAX or pair.state_since < now - GONE_SHOWN_S:
                self.table.remove(pair.id)
                del self._watched[pair.id]

    def _keep(self, id_: str, document: ShownPair) -> None:
        self._watched[id_].document = document
        self.table.put(document)


class _HostHistory:
    """One pair or syphon, from its first answer on."""

    def __init__(self, id_: str, host: str) -> None:
        self.document: ShownPair | None = None
        self.number = -1
        self._id = id_
        self._host = host
        self._spans: dict[str, EntitySpans] = {}
        self._since: dict[str, float] = {}
        self._lost: dict[str, float] = {}
        self._sends = SendHistory()
        self._judged_at = self._answered_at = 0.0
        self._began_at: float | None = None

    def is_shown(self, answer: HostAnswer, now: float) -> bool:
        """Whether the document of this very answer is shown, and its texts are not too old."""
        is_running = self.document is not None and self.document.state == "running"
        is_fresh = now - self._judged_at < JUDGED_AGAIN_S
        return is_running and is_fresh and self.number == answer.number

    def answered(
        self, answer: HostAnswer, card: HostCard, status: HostStatus, now: float
    ) -> ShownPair:
        if answer.number != self.number or self.document is None:
            # The times in an answer are relative to when it came, however often it is judged.
            self._answered_at = now
        self.number, self._judged_at = answer.number, now
        self._began_at = _epoch(card.began_at)
        judgement = judgement_of(status, now)
        shown = ShownPair(
            **self._head(card),
            state="running",
            state_since=self._state_since("running", now),
            why="",
            primary=status.primary,
            secondary=status.secondary,
            attention=judgement.attention,
        )
        shown = replace(shown, receiving=shown_receiving(status, self._lost_at))
        if isinstance(status, SyphonStatus):
            return replace(shown, waiting=status.waiting, syphon=syphon_of(status))
        entities = status.entities
        for known in (self._spans, self._since):
            for path in known.keys() - entities.keys():
                del known[path]
        # Without the words that say that it is not protected.
        cause = judgement.exposed.partition(": ")[2]
        syphon = status.own_syphon
        return replace(
            shown,
            why=plain(status.searching or status.faulted or cause),
            protected=not judgement.exposed,
            verified_at=status.verified_at,
            safe=judgement.is_safe,
            safety=judgement.sends,
            fleet=plain(status.fleet or ""),
            waiting=status.backlog_waiting,
            syphon=None if syphon is None else syphon_of(syphon),
            entities=[self._entity(one, judgement, now) for one in entities.values()],
            queues=list(status.backlog_queues.values()),
            sends=self._observed_sends(status, now),
            unseen=self._sends.unseen,
        )

    def silent(self, answer: HostAnswer, now: float) -> ShownPair:
        since = self._state_since("silent", now)
        if self.document is not None:
            return replace(self.document, state="silent", state_since=since, why=answer.why)
        card = answer.card or HostCard("", answer.id.partition(".")[0], 0)
        return ShownPair(**self._head(card), state="silent", state_since=since, why=answer.why)

    def gone(self, last: ShownPair, now: float) -> ShownPair:
        spans = {path: spans.end(now) for path, spans in self._spans.items()}
        entities = [
            replace(one, spans=spans[one.path], fails_over_in_s=None, next_ping_in_s=None)
            for one in last.entities
        ]
        return replace(
            last, state="gone", state_since=now, why=NO_LONGER_RUNNING, entities=entities,
            safe=None, attention=[], receiving=[],
        )  # fmt: skip

    def _observed_sends(self, status: PairStatus, now: float) -> list[SendBucket]:
        totals = [*status.entities.values(), status.forgotten]
        sums = [
            sum(getattr(one, name) for one in totals) for name in ("sent", "diverted", "raised")
        ]
        return self._sends.observe((sums[0], sums[1], sums[2]), now, self._began_at)

    def _head(self, card: HostCard) -> dict[str, Any]:
        known = as_json(card)
        started_at = _epoch(known.pop("began_at"))
        return {"id": self._id, "host": self._host, "started_at": started_at, **known}

    def _state_since(self, state: str, now: float) -> float:
        last = self.document
        return last.state_since if last and last.state == state else now

    def _entity(self, status: EntityStatus, judgement: Judgement, now: float) -> ShownEntity:
        states = judgement.states.get(status.path) or [str(status.state)]
        state, entered = shown_state(status, states), self._entered_at(status)
        since = entered
        if state in ("forced", "frozen"):
            since = status.held_at
        elif state == "raising":
            since = None
        spans = self._spans.setdefault(status.path, EntitySpans())
        known: dict[str, Any] = as_json(status)
        known |= {name: plain(known[name]) for name in PLAIN_TEXTS}
        known |= {"since_s": None, "states": states, "since": entered}
        return ShownEntity(**known, spans=spans.observe(state, since, now, self._began_at))

    def _lost_at(self, path: str, lost_s: float) -> float:
        """Return when a receiver lost its link; the same for as long as it has none."""
        at, known = self._answered_at - lost_s, self._lost.get(path)
        if known is None or abs(at - known) > 1.0:
            known = self._lost[path] = round(at, 3)
        return known

    def _entered_at(self, status: EntityStatus) -> float | None:
        """Return when the entity entered its state; the same for as long as it stays in it."""
        if status.since_s is None:
            return None
        at, known = self._answered_at - status.since_s, self._since.get(status.path)
        # The host measures its time and this host its own: the difference varies by a little.
        if known is None or abs(at - known) > 1.0:
            known = self._since[status.path] = round(at, 3)
        return known


def syphon_of(status: SyphonStatus) -> ShownSyphon:
    queues = status.queues.values()
    obstacles = dict.fromkeys(
        Obstacle(what, plain(why)) for queue in queues for what, why in queue.obstacles.items()
    )
    return ShownSyphon(
        paused=status.paused,
        completed=status.total("completed"),
        in_flight=status.total("in_flight"),
        dead_lettered=status.total("dead_lettered"),
        rate=round(sum(queue.rate_per_s for queue in queues), 1),
        forecast_s=status.empty_in_s,
        limit=next((queue.limit for queue in queues if queue.limit), ""),
        obstacles=[*obstacles],
        twins=twins_text(status.twins),
    )


def _epoch(iso: str) -> float | None:
    try:
        return datetime.fromisoformat(iso).timestamp() if iso else None
    except ValueError:
        return None


def headline_of(
    pairs: Iterable[ShownPair], now: float, proof: ShownProof | None = None
) -> Headline:
    """Return the worst that is true of the pairs: level, text, and since when if that is known.

    `proof` is the last conservation report: only it may say that nothing was lost.
    """
    shown = list(pairs)
    alive = [pair for pair in shown if pair.state != "gone" and pair.kind == "pair"]
    running = [pair for pair in alive if pair.state == "running"]
    if not alive:
        ended = sum(pair.kind == "pair" for pair in shown)
        more = f"; {counted(ended, 'pair')} ended within the last hour" if ended else ""
        return Headline("none", f"No pair runs here{more}.")
    if unprotected := [pair for pair in running if not pair.protected]:
        why = next((pair.why for pair in unprotected if pair.why), "no backlog queue")
        names = named([pair.name for pair in unprotected], NAMED_MAX)
        return Headline("unprotected", f"Unprotected: {names}, sends have no backlog ({why}).")
    if unsafe := [pair for pair in running if pair.safe is False]:
        return Headline("attention", f"{visible(unsafe[0].name)}: {unsafe[0].safety}.")
    if silent := [pair for pair in alive if pair.state == "silent"]:
        names = named([pair.name for pair in silent], NAMED_MAX)
        return Headline("attention", f"No answer from {names}: {visible(silent[0].why)}.")
    entities = [one for pair in running for one in pair.entities]
    if diverted := [one for one in entities if one.state == "failed over"]:
        return _failed_over(diverted, now, proof)
    if troubled := [pair for pair in shown if pair.state == "running" and pair.attention]:
        more = f" (and {len(troubled) - 1:,} more)" if len(troubled) > 1 else ""
        first = troubled[0]
        return Headline("attention", f"{visible(first.name)}: {first.attention[0]}{more}.")
    what = f"{counted(len(running), 'pair')}, {counted(len(entities), 'entity', 'entities')}"
    return Headline("healthy", f"Healthy: {what}, sends go to the primary.")


def _failed_over(entities: Sequence[ShownEntity], now: float, proof: ShownProof | None) -> Headline:
    since = min((one.since for one in entities if one.since is not None), default=None)
    lasting = "" if since is None else f" for {duration(max(0.0, now - since))}"
    count = sum(one.diverted for one in entities)
    raised = sum(one.raised for one in entities)
    errors = f", {raised:,} raised to their callers" if raised else ""
    names = named(list(dict.fromkeys(one.path for one in entities)), NAMED_MAX)
    proven = _proven(proof, since)
    text = f"Failed over{lasting}: {names}; {count:,} diverted{errors}{proven}."
    return Headline("failed-over", text, since)


def _proven(proof: ShownProof | None, since: float | None) -> str:
    """Return what a proof that was made in this outage says; empty: there is none."""
    if proof is None or proof.made_at is None or since is None or proof.made_at < since:
        return ""
    words = PROVEN.get(proof.verdict)
    made = f"{datetime.fromtimestamp(proof.made_at).astimezone():%H:%M}"
    return "" if words is None else f"; {words} by the proof of {made}"
