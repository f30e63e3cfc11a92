"""The documents of the page besides the view: timeline, events, backlog, dead letters, actions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request

from twinbus.page.actions import Actions, SecondarySource, Unanswerable
from twinbus.page.core.model import ShownEvent, ShownPair, ShownProof
from twinbus.page.core.timeline import merged_spans
from twinbus.page.ledger_tail import ledger_events, timeline
from twinbus.status.document import SyphonStatus
from twinbus.wording import plain

REMEMBERED_S: Final = 5.0
"""How long a timeline and events are kept: several tabs ask for the same."""

REMEMBERED_MAX: Final = 32
"""Documents that are kept: a viewer may ask for the timeline of any length of time."""

COST_S: Final = 30.0
OUTAGE_COST_S: Final = 10.0
"""How long a cost is kept, without an outage and in one: it may read 64 MB of the ledger."""

VIEWERS_PAUSE_S: Final = 5.0
"""Time between two searches of viewers: each peeks at up to 5,000 messages, which is billed."""

HISTORY_S: Final = 7 * 86_400.0
EVENTS_MAX: Final = 1_000


CostOf = Callable[[str, float | None, int], dict[str, Any]]
"""Returns the cost now, of a label, since when its outage lasts, and its idle queues; blocks."""


class PageDocuments:
    def __init__(
        self, actions: Actions, ledger: Path | None = None, cost: CostOf | None = None
    ) -> None:
        self.actions = actions
        self._board = actions.live.board
        self._ledger = ledger
        self._cost = cost
        self._remembered: dict[object, tuple[float, Any]] = {}
        self._asking = {is_operator: asyncio.Lock() for is_operator in (True, False)}
        """Operators wait for each other, and viewers, who may ask for ever longer timelines."""
        self._searching = asyncio.Lock()
        """Searches of operators, which wait for each other and for nothing else."""
        self._viewers_at = 0.0
        """When viewers may search again, by the monotonic clock."""

    @property
    def offers(self) -> list[str]:
        return [*self.actions.offers, *(("cost",) if self._cost is not None else ())]

    async def proof(self, _: Request) -> ShownProof:
        if self.actions.proof is None:
            raise Unanswerable("start `twinbus page` with --ledger to prove conservation", 409)
        return await asyncio.to_thread(self.actions.proof.document)

    async def cost(self, request: Request) -> dict[str, Any]:
        """Return what the operations in the ledger cost, and those of an outage so far."""
        if self._cost is None:
            raise Unanswerable("start `twinbus page` with --ledger to see the cost", 409)
        pair = self._pair(request)
        outage = [
            one.since
            for one in pair.entities
            if one.state == "failed over" and one.since is not None
        ]
        queues = sum(len(one.queues) for one in self._syphons(pair.name))
        since = min(outage, default=None)
        kept_s = COST_S if since is None else OUTAGE_COST_S
        key = "cost", pair.name, since is None
        asked = asyncio.to_thread, self._cost, pair.name, since, queues
        found: dict[str, Any] = (await self._cached(request, key, kept_s, *asked))[1]
        return found

    async def timeline(self, request: Request) -> dict[str, Any]:
        """Return the states, pings and sends of a pair; without a ledger what was observed."""
        pair = self._pair(request)
        ends = _number(request, "to", time.time())
        begins = max(_number(request, "from", ends - 600), ends - HISTORY_S)
        if self._ledger is None or pair.read_only:
            return with_observed(_observed(pair, begins, ends), pair)
        table = self._board.table.pairs.values()
        running = {
            one.pid
            for one in table
            if one.state == "running" and not one.read_only and one.name == pair.name
        }
        others = running - {pair.pid}
        begins, ends = float(int(begins)), float(int(ends) + 1)
        key = pair.id, round(ends - begins, -1)
        asked = timeline, self._ledger, pair.name, begins, ends, running, others
        _, found = await self._cached(request, key, REMEMBERED_S, asyncio.to_thread, *asked)
        return with_observed(found, pair)

    async def events(self, request: Request) -> dict[str, Any]:
        """Return what happened, oldest first: as observed, and before that by the ledger."""
        limit = int(min(EVENTS_MAX, max(1, _number(request, "limit", 200))))
        observed = list(self._board.events)
        found: list[ShownEvent] = []
        if self._ledger is not None:
            asked = ledger_events, self._ledger, time.time() - HISTORY_S
            _, found = await self._cached(
                request, "events", REMEMBERED_S, asyncio.to_thread, *asked
            )
        # Both tell of the same change: the observed one says from which state.
        known = {_change(one, near) for one in observed for near in (-1, 0, 1)}
        earlier = [one for one in found if _change(one) not in known]
        return {"events": sorted([*earlier, *observed], key=lambda one: one.t)[-limit:]}

    async def backlog(self, request: Request) -> dict[str, Any]:
        """Return what the backlog queues of a pair hold, and how fast it leaves them."""
        pair, why = self._pair(request), ""
        as_of: float | None = None
        queues: list[dict[str, Any]] = []
        try:
            secondary = self.actions.secondary_of(pair)
        except Unanswerable as error:
            why = str(error)
        else:
            as_of, queues = await self._counts(request, secondary, pair.name)
        return backlog_of(queues, as_of, why, self._syphons(pair.name))

    async def dead_letters(self, request: Request) -> dict[str, Any]:
        """Return the dead letters of a pair that match a search; a viewer sees no bodies."""
        pair = self._pair(request)
        try:
            secondary = self.actions.secondary_of(pair)
        except Unanswerable as error:
            return {"as_of": None, "truncated": False, "letters": [], "why": str(error)}
        is_operator = request.state.is_operator
        names = ("reason", "entity", "id", *(("body",) if is_operator else ()))
        search = {name: request.query_params.get(name, "") for name in names}
        if is_operator:
            async with self._searching:
                found = await secondary.letters(pair.name, search, with_bodies=True)
        else:
            found = await self._search_of_viewer(secondary, pair.name, search)
        return {"as_of": time.time(), **found}

    async def _search_of_viewer(
        self, secondary: SecondarySource, label: str, search: dict[str, str]
    ) -> dict[str, Any]:
        """Search for a viewer: one at a time, with a pause, beside everything of the operator."""
        if time.monotonic() < self._viewers_at:
            raise Unanswerable("viewers search one at a time; try again in some seconds", 429)
        self._viewers_at = float("inf")
        try:
            return await secondary.letters(label, search, with_bodies=False)
        finally:
            self._viewers_at = time.monotonic() + VIEWERS_PAUSE_S

    async def dead_letter(self, request: Request) -> dict[str, Any]:
        if not request.state.is_operator:
            raise Unanswerable("bodies of messages need the operator's token", 403)
        pair = self._pair(request)
        secondary = self.actions.secondary_of(pair)
        queue, number = request.query_params.get("queue", ""), int(_number(request, "sequence", 0))
        # By name: what begins with the label may be a queue of an application.
        if queue not in [
            one["path"] for one in (await self._counts(request, secondary, pair.name))[1]
        ]:
            raise Unanswerable("that queue is no backlog queue of this pair")
        found = await secondary.letter(queue, number)
        if found is None:
            raise Unanswerable("there is no such dead letter", 404)
        return found

    async def _counts(
        self, request: Request, secondary: SecondarySource, label: str
    ) -> tuple[float, list[dict[str, Any]]]:
        """Return the backlog queues of a label with what they hold, and when that was so."""
        kept_s = secondary.count_again_s
        key = "counts", label
        return await self._cached(request, key, kept_s, secondary.queues, label)

    def _pair(self, request: Request) -> ShownPair:
        return self.actions.pair(request.query_params.get("pair", ""))

    def _syphons(self, label: str) -> list[SyphonStatus]:
        answers = self._board.answers.values()
        found = [one.status for one in answers if one.card is not None and one.card.name == label]
        syphons = [None if one is None else one.own_syphon for one in found]
        return [one for one in syphons if one is not None]

    async def _cached(
        self,
        request: Request,
        key: object,
        for_s: float,
        make: Callable[..., Awaitable[Any]],
        *arguments: Any,
    ) -> tuple[float, Any]:
        """Return what `make` returns, kept for a moment, and when it was made."""
        async with self._asking[request.state.is_operator]:
            known = self._remembered.get(key)
            if known is None or time.time() - known[0] >= for_s:
                self._remembered.pop(key, None)
                known = time.time(), await make(*arguments)
                if len(self._remembered) >= REMEMBERED_MAX:
                    del self._remembered[next(iter(self._remembered))]  # The oldest.
                self._remembered[key] = known
        return known


def backlog_of(
    queues: list[dict[str, Any]],
    as_of: float | None,
    why: str,
    syphons: Sequence[SyphonStatus],
) -> dict[str, Any]:
    pumps = [(path, state) for one in syphons for path, state in one.queues.items()]
    rate = round(sum(state.rate_per_s for _, state in pumps), 1)
    is_paused = any(state.paused for _, state in pumps)
    waiting = sum(queue["waiting"] for queue in queues)
    in_flight = {path: 0 for path, _ in pumps}
    held: dict[tuple[str, str], float | None] = {}
    for path, state in pumps:
        in_flight[path] += state.in_flight
        for what, reason in state.obstacles.items():
            held[what, plain(reason)] = state.gives_up_in_s.get(what)
    empty_in_s = None
    if as_of is not None and not waiting:
        empty_in_s = 0.0
    elif as_of is not None and rate > 0 and not is_paused:
        empty_in_s = waiting / rate
    return {
        "as_of": as_of,
        "why": why,
        "queues": [{**queue, "in_flight": in_flight.get(queue["path"])} for queue in queues],
        "rate": rate if pumps else None,
        "empty_in_s": empty_in_s,
        "held": [
            {"path": what, "why": reason, "gives_up_in_s": left_s}
            for (what, reason), left_s in held.items()
        ],
    }


def _observed(pair: ShownPair, begins: float, ends: float) -> dict[str, Any]:
    return {
        "from": begins,
        "to": ends,
        "entities": [],
        "sends": pair.sends,
        "unseen": pair.unseen,
        "bucket_s": 10.0,
        "truncated": True,
        "recorded": False,
    }


def with_observed(found: dict[str, Any], pair: ShownPair) -> dict[str, Any]:
    """Return a timeline of the ledger with what the page itself saw, where the ledger has none."""
    begins, ends = found["from"], found["to"]
    until = ends if pair.state == "running" else min(ends, pair.state_since)
    rows = {row["path"]: row for row in found["entities"]}
    observed = {one.path: one.spans for one in pair.entities}
    entities = []
    for path in {**rows, **observed}:
        row, seen = rows.get(path, {"marks": [], "spans": []}), observed.get(path, [])
        spans = merged_spans(row["spans"], seen, begins, until, pair.started_at)
        entities.append({"path": path, "marks": row["marks"], "spans": spans})
    return {**found, "entities": entities}


def _change(event: ShownEvent, near_s: int = 0) -> tuple[object, ...]:
    """Return what an observed event and the same one of the ledger have in common."""
    return event.pair, event.path, int(event.t) + near_s


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e12:
        raise Unanswerable(f"{name} must be a number from 0")
    return number
