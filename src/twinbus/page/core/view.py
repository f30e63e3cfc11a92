"""The pairs of this host as people see them: `Board` turns answers into documents of PAIR. Pure.

    board = Board(judge, host="web-1")
    board.observe(answers, now)      once for each poll; `answers` come from `sources.hosts`
    board.table.pairs                a JSON document for each pair, by id
    headline_of(board.table.pairs.values(), now)

A document gets a new version only if something in it changed. A pair that ended is shown as gone
for an hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from twinbus.control.protocol import HostCard
from twinbus.page.core.history import UNKNOWN, EntitySpans, SendHistory, shown_state
from twinbus.page.core.pair_table import Pair, PairTable
from twinbus.wording import plain

GONE_SHOWN_S: Final = 3_600.0
"""How long a pair that ended is shown."""

GONE_MAX: Final = 100
"""Pairs that ended to show at most: a program that restarts in a circle makes many."""

EVENTS_MAX: Final = 1_000
JUDGED_AGAIN_S: Final = 20.0
"""An answer that stays the same is judged again after this time: its texts say how old it is."""

NO_LONGER_RUNNING: Final = "no longer running"
UNREADABLE: Final = "its status cannot be read; use the same release of Twinbus for it and the page"


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """What one control socket answered."""

    id: str
    """Unique for each process and pair; the name of the socket."""
    card: HostCard | None
    """None: it has never answered."""
    status: Mapping[str, Any] | None
    """None: there is no usable answer, and `why` says why."""
    why: str = ""
    number: int = 0
    """Differs if the answer differs from the last one of this host."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What `twinbus status` says about a pair."""

    attention: Sequence[str]
    is_safe: bool
    safety: str
    states: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The words for the entities about which there is something to say, by path."""
    exposed: str = ""
    """Why no backlog queue can take over; empty: one can."""


Judge = Callable[[Mapping[str, Any], float], Judgement]
"""Judges a status at a time."""


class Board:
    """Everything observed on one host."""

    def __init__(self, judge: Judge, host: str) -> None:
        self.table = PairTable()
        self.answers: dict[str, HostAnswer] = {}
        """The latest answer of each host that is there."""
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)
        """What happened, as observed; each has a `number` that goes up by 1."""
        self.event_count = 0
        self._judge = judge
        self._host = host
        self._watched: dict[str, _WatchedHost] = {}
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
        """Add what happened at time `now`."""
        self.event_count += 1
        self.events.append(
            {
                "number": self.event_count,
                "t": now,
                "pair": pair,
                "host": self._host,
                "kind": kind,
                "path": path,
                "text": text,
                "level": level,
                "who": who,
            }
        )

    def _take(self, answer: HostAnswer, now: float) -> None:
        watched = self._watched.get(answer.id)
        if watched is None:
            watched = self._watched[answer.id] = _WatchedHost(answer.id, self._host)
            if not self._is_first and answer.card is not None:
                text = f"{answer.card.kind} {answer.card.name} runs, pid {answer.card.pid}"
                self.add_event(answer.card.name, "started", text, now)
        before = watched.document
        if answer.status is None or answer.card is None:
            document = watched.silent(answer, now)
            if before is not None and before["state"] != "silent":
                text = f"{document['name']} does not answer: {answer.why}"
                self.add_event(document["name"], "silent", text, now, level="error")
        elif watched.is_shown(answer, now):
            return
        else:
            try:
                judgement = self._judge(answer.status, now)
                document = watched.answered(answer, answer.status, judgement, now)
            except (AttributeError, KeyError, TypeError, ValueError):
                self._take(replace(answer, status=None, why=UNREADABLE), now)
                return
            self._note_changes(before, document, now)
        self._keep(answer.id, document)

    def _note_changes(self, before: Pair | None, after: Pair, now: float) -> None:
        if before is None:
            return
        name = after["name"]
        if before["protected"] != after["protected"]:
            text, level = f"{name}: protected again", "info"
            if not after["protected"]:
                text, level = f"{name}: UNPROTECTED: {after['why']}", "error"
            self.add_event(name, "protection", text, now, level=level)
        old = {entity["path"]: entity for entity in before["entities"]}
        for entity in after["entities"]:
            was, path = old.get(entity["path"]), entity["path"]
            state = shown_state(entity)
            if was is None or shown_state(was) == state:
                continue
            reason = entity["raising_reason"] if state == "raising" else entity["reason"]
            why = f" ({reason})" if reason else ""
            # After a gap it is not known from which state it came.
            is_seen = len(entity["spans"]) < 2 or entity["spans"][-2][2] != UNKNOWN
            text = f"{path}: {shown_state(was)} -> {state}{why}"
            text = text if is_seen else f"{path}: {state}{why}"
            level = "info" if state == "healthy" else "warning"
            at = entity["spans"][-1][0] if entity["spans"] else now
            self.add_event(name, "state", text, at, path=path, level=level)

    def _gone(self, id_: str, now: float) -> None:
        watched = self._watched[id_]
        if watched.document is None or watched.document["state"] == "gone":
            return
        document = watched.gone(now)
        text = f"{document['name']}: {NO_LONGER_RUNNING}, pid {document['pid']}"
        self.add_event(document["name"], "gone", text, now, level="warning")
        self._keep(id_, document)

    def _forget(self, now: float) -> None:
        documents = (watched.document for watched in self._watched.values())
        gone = [pair for pair in documents if pair is not None and pair["state"] == "gone"]
        gone.sort(key=lambda pair: -float(pair["state_since"]))
        for position, pair in enumerate(gone):
            if position >= GONE_MAX or pair["state_since"] < now - GONE_SHOWN_S:
                self.table.remove(pair["id"])
                del self._watched[pair["id"]]

    def _keep(self, id_: str, document: Pair) -> None:
        self._watched[id_].document = document
        self.table.put(document)


class _WatchedHost:
    """One pair or syphon, from its first answer on."""

    def __init__(self, id_: str, host: str) -> None:
        self.document: Pair | None = None
        self.number = -1
        self._id = id_
        self._host = host
        self._spans: dict[str, EntitySpans] = {}
        self._since: dict[str, float] = {}
        self._sends = SendHistory()
        self._judged_at = self._answered_at = 0.0
        self._began_at: float | None = None

    def is_shown(self, answer: HostAnswer, now: float) -> bool:
        """Whether the document of this very answer is shown, and its texts are not too old."""
        is_running = self.document is not None and self.document["state"] == "running"
        is_fresh = now - self._judged_at < JUDGED_AGAIN_S
        return is_running and is_fresh and self.number == answer.number

    def answered(
        self, answer: HostAnswer, status: Mapping[str, Any], judgement: Judgement, now: float
    ) -> Pair:
        """Return the document of a host that answers."""
        assert answer.card is not None
        if answer.number != self.number or self.document is None:
            # The times in an answer are relative to when it came, however often it is judged.
            self._answered_at = now
        self.number, self._judged_at = answer.number, now
        self._began_at = _epoch(answer.card.began_at)
        entities = status.get("entities") or {}
        for known in (self._spans, self._since):
            for path in known.keys() - entities.keys():
                del known[path]
        is_pair = answer.card.kind == "pair"
        return {
            **self._head(answer.card),
            "state": "running",
            "state_since": self._state_since("running", now),
            "why": plain(status.get("searching") or status.get("faulted") or _cause(judgement)),
            "primary": str(status.get("primary", "")),
            "secondary": str(status.get("secondary", "")),
            "protected": not judgement.exposed,
            "verified_at": status.get("verified_at"),
            "safe": judgement.is_safe if is_pair else None,
            "safety": judgement.safety if is_pair else "",
            "attention": list(judgement.attention),
            "waiting": status.get("backlog_waiting", status.get("waiting")),
            "syphon": syphon_of(status),
            "entities": [self._entity(one, judgement, now) for one in entities.values()],
            "queues": [_queue(path, one) for path, one in status.get("backlog_queues", {}).items()],
            "sends": self._observed_sends(status, now) if is_pair else [],
            "unseen": self._sends.unseen,
        }

    def _observed_sends(self, status: Mapping[str, Any], now: float) -> list[list[float]]:
        totals = [*status["entities"].values(), status.get("forgotten") or {}]
        sent, diverted, raised = (
            sum(one.get(name, 0) for one in totals) for name in ("sent", "diverted", "raised")
        )
        return self._sends.observe((sent, diverted, raised), now, self._began_at)

    def silent(self, answer: HostAnswer, now: float) -> Pair:
        """Return the document of a host that does not answer: what was known, and why."""
        since = self._state_since("silent", now)
        return {**self._known(answer), "state": "silent", "state_since": since, "why": answer.why}

    def gone(self, now: float) -> Pair:
        """Return the document of a host whose process ended."""
        assert self.document is not None
        spans = {path: spans.end(now) for path, spans in self._spans.items()}
        entities = [
            {**one, "spans": spans[one["path"]], "fails_over_in_s": None, "next_ping_in_s": None}
            for one in self.document["entities"]
        ]
        return {
            **self.document, "state": "gone", "state_since": now, "why": NO_LONGER_RUNNING,
            "entities": entities, "safe": None, "attention": [],
        }  # fmt: skip

    def _known(self, answer: HostAnswer) -> Pair:
        if self.document is not None:
            return self.document
        card = answer.card or HostCard("", answer.id.partition(".")[0], 0)
        return {
            **self._head(card),
            "primary": "", "secondary": "", "protected": True, "verified_at": None,
            "safe": None, "safety": "",
            "attention": [], "waiting": None, "syphon": None, "entities": [], "queues": [],
            "sends": [], "unseen": [],
        }  # fmt: skip

    def _head(self, card: HostCard) -> Pair:
        return {
            "id": self._id,
            "kind": card.kind,
            "name": card.name,
            "pid": card.pid,
            "host": self._host,
            "program": card.program,
            "started_at": _epoch(card.began_at),
            "read_only": False,
        }

    def _state_since(self, state: str, now: float) -> float:
        last = self.document
        return float(last["state_since"]) if last and last["state"] == state else now

    def _entity(
        self, status: Mapping[str, Any], judgement: Judgement, now: float
    ) -> dict[str, Any]:
        path, since = str(status["path"]), self._entered_at(status)
        spans = self._spans.setdefault(path, EntitySpans())
        entity = {
            "path": path,
            "state": str(status["state"]),
            "states": list(judgement.states.get(path, (status["state"],))),
            "since": since,
            "forced": bool(status.get("forced")),
            "frozen": bool(status.get("frozen")),
            "sent": status.get("sent", 0),
            "diverted": status.get("diverted", 0),
            "raised": status.get("raised", 0),
            "raising": status.get("raising", 0),
            "raising_reason": plain(status.get("raising_reason") or ""),
            "reason": str(status.get("reason") or ""),
            "last_error": str(status.get("last_error") or ""),
            "last_error_at": status.get("last_error_at"),
            "fails_over_in_s": _tenths(status.get("fails_over_in_s")),
            "next_ping_in_s": _tenths(status.get("next_ping_in_s")),
        }
        state = shown_state(entity)
        if state in ("forced", "frozen"):
            since = status.get("held_at")
        elif state == "raising":
            since = None
        return {**entity, "spans": spans.observe(state, since, now, self._began_at)}

    def _entered_at(self, status: Mapping[str, Any]) -> float | None:
        """Return when the entity entered its state; the same for as long as it stays in it."""
        since_s, path = status.get("since_s"), str(status["path"])
        if since_s is None:
            return None
        at, known = self._answered_at - since_s, self._since.get(path)
        # The host measures its time and this host its own: the difference varies by a little.
        if known is None or abs(at - known) > 1.0:
            known = self._since[path] = round(at, 3)
        return known


def syphon_of(status: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what the syphon of a host does, summed over its queues; None: it runs none."""
    queues: Mapping[str, Mapping[str, Any]] | None = status.get("syphon", status.get("queues"))
    if queues is None:
        return None
    states = queues.values()
    obstacles = dict.fromkeys(
        (str(what), plain(why))
        for state in states
        for what, why in (*state.get("problems", {}).items(), *state.get("held", {}).items())
    )
    sums = {
        name: sum(state.get(name, 0) for state in states)
        for name in ("completed", "in_flight", "dead_lettered")
    }
    return {
        "paused": bool(status.get("paused")) or any(state.get("paused") for state in states),
        **sums,
        "rate": round(sum(state.get("rate_per_s", 0.0) for state in states), 1),
        "forecast_s": status.get("empty_in_s"),
        "limit": next((str(state["limit"]) for state in states if state.get("limit")), ""),
        "obstacles": [{"what": what, "why": why} for what, why in obstacles],
    }


def _cause(judgement: Judgement) -> str:
    """Return why the pair is not protected, without the words that say that it is not."""
    return judgement.exposed.partition(": ")[2]


def _queue(path: str, status: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "path": path,
        "state": str(status.get("state", "")),
        "why": str(status.get("reason") or ""),
        "returns_in_s": _tenths(status.get("returns_in_s")),
    }


def _tenths(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _epoch(iso: str) -> float | None:
    try:
        return datetime.fromisoformat(iso).timestamp() if iso else None
    except ValueError:
        return None
