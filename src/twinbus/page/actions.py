"""What an operator does from the page. Each action is recorded in the ledger with who asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from twinbus.control.protocol import ADAPTIVE
from twinbus.control.sockets import ask
from twinbus.errors import ControlError, TwinbusError
from twinbus.ledger import LedgerWriter
from twinbus.page.core.model import ShownPair
from twinbus.page.jobs import Drains, JobResult, Proof
from twinbus.page.live import LiveView
from twinbus.wording import visible

STEERING: Final = {
    "freeze": "{path}: its routing stays as it is until it is unfrozen",
    "unfreeze": "{path}: its routing may change again",
    "force-failover": "{path}: its sends are diverted until it is marked healthy",
    "mark-healthy": "{path}: its sends go to the primary again",
}
SYPHON: Final = {
    "pause": "the syphon is paused; messages in flight are finished",
    "resume": "the syphon is resumed",
}
DRAINS: Final = ("drain-once", "only-entity")
SEQUENCES_MAX: Final = 10_000
TEXT_MAX: Final = 300


class Unanswerable(Exception):
    """A request that cannot be answered; the text is for the person who made it."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class SecondarySource(Protocol):
    """The page's secondary; `console.page.secondary` implements it and says what each does."""

    @property
    def count_again_s(self) -> float: ...
    def holds(self, secondary: str) -> bool: ...
    async def queues(self, label: str) -> list[dict[str, Any]]: ...
    async def letters(
        self, label: str, search: Mapping[str, str], *, with_bodies: bool
    ) -> dict[str, Any]: ...
    async def letter(self, queue: str, number: int) -> dict[str, Any] | None: ...
    async def replay(self, queue: str, numbers: list[int]) -> str: ...
    async def prunable(self, label: str, keep: int) -> list[str]: ...
    async def prune(self, label: str, keep: int, queues: list[str]) -> str: ...


@dataclass(frozen=True, slots=True)
class Actions:
    """Carries out the actions of operators."""

    live: LiveView
    secondary: SecondarySource | None
    ledger: LedgerWriter | None
    drains: Drains | None = None
    proof: Proof | None = None
    is_read_only: bool = False

    @property
    def offers(self) -> list[str]:
        """The actions and documents that depend on how the page was started."""
        drains = DRAINS if self.drains is not None else ()
        prune = ("prune",) if self.secondary is not None else ()
        return ["rate", *drains, *prune, *(("proof", "prove") if self.proof is not None else ())]

    async def act(self, given: Mapping[str, Any], who: str) -> dict[str, Any]:
        """Carry out one action, and record it; Unanswerable if it is refused."""
        action = str(given.get("action", ""))
        if self.is_read_only:
            raise Unanswerable("this page is read-only", 403)
        if action == "note":
            return self._note(given.get("text"), who)
        pair = self.pair(str(given.get("pair", "")))
        if pair.read_only:
            raise Unanswerable(f"this pair runs on {pair.host}: use the page there", 403)
        path = given.get("path")
        if path is not None and not isinstance(path, str):
            raise Unanswerable("path must be a text")
        if action == "prune" and given.get("dry_run") is True:
            return await self._what_prune_does(pair)
        try:
            text = await self._carried_out(action, pair, path or "", given, who)
        except TwinbusError as error:
            self._record(pair, action, path, who, str(error))
            raise Unanswerable(str(error), 409) from error
        self._record(pair, action, path, who, "")
        return {"ok": True, "text": text, "ledger": self.ledger is not None}

    def _note(self, text: object, who: str) -> dict[str, Any]:
        """Keep what a person, or a drill, writes among the events."""
        if not isinstance(text, str) or not 0 < len(text.strip()) <= TEXT_MAX:
            raise Unanswerable(f"a note has 1 to {TEXT_MAX} characters")
        said = visible(text.strip())
        self.live.board.add_event("", "note", said, time.time(), who=who)
        if self.ledger is not None:
            self.ledger.record("action", state="note", error=f"{said} (by {who})", view="client")
            self.ledger.flush()
        return {"ok": True, "text": "noted", "ledger": self.ledger is not None}

    def pair(self, id_: str) -> ShownPair:
        """Return a pair that is shown; Unanswerable if there is none of this id."""
        pair = self.live.board.table.pairs.get(id_)
        if pair is None:
            raise Unanswerable("there is no such pair", 404)
        return pair

    def secondary_of(self, pair: ShownPair) -> SecondarySource:
        """Return the secondary of a pair; Unanswerable if this page was started without it."""
        if pair.read_only:
            raise Unanswerable(f"the page of {pair.host} has it", 409)
        if self.secondary is None or not self.secondary.holds(pair.secondary):
            raise Unanswerable(f"start `twinbus page` with the secondary {pair.secondary}", 409)
        return self.secondary

    async def _carried_out(
        self, action: str, pair: ShownPair, path: str, given: Mapping[str, Any], who: str
    ) -> str:
        if action in STEERING:
            if not path:
                raise Unanswerable(f"{action} needs the path of an entity")
            await self._ask(pair.id, action, {"path": path})
            return STEERING[action].format(path=path)
        if action in SYPHON:
            for id_ in self._syphon_hosts(pair):
                await self._ask(id_, action)
            return SYPHON[action]
        if action == "replay":
            return await self._replay(pair, given)
        if action in DRAINS:
            return self._drain(pair, path if action == "only-entity" else None, who)
        if action == "prove":
            return self._prove(pair, who)
        if action == "rate":
            return await self._rate(pair, given.get("value"))
        if action == "prune":
            return await self._prune(pair, given.get("queues"))
        raise Unanswerable("there is no such action")

    def _drain(self, pair: ShownPair, path: str | None, who: str) -> str:
        if path == "":
            raise Unanswerable("only-entity needs the path of an entity")
        drains, name = self.drains, pair.name
        if drains is None or (pair.primary, pair.secondary) != (drains.primary, drains.secondary):
            raise Unanswerable(
                f"start `twinbus page` with the primary {pair.primary} and the secondary"
                f" {pair.secondary}, or use `twinbus syphon drain`", 409,
            )  # fmt: skip
        what = "drain-once" if path is None else "only-entity"

        def ended(result: JobResult) -> None:
            text = result.lines[-1] if result.lines else f"exit status {result.status}"
            level = "info" if result.status == 0 else "error"
            said = text if result.status == 0 else result.error or text
            self._add_event(name, path, f"{what} ended: {said}", who, level)

        arguments = ["syphon", "drain", f"--label={name}", *([f"--only={path}"] if path else [])]
        if not drains.jobs.start(f"drain {name}", arguments, ended):
            raise Unanswerable(f"a drain of {name} that this page started still runs", 409)
        return f"started: {name}'s backlog{f' for {path}' if path else ''} is drained once"

    def _prove(self, pair: ShownPair, who: str) -> str:
        if self.proof is None:
            raise Unanswerable("start `twinbus page` with --ledger to prove conservation", 409)

        def ended(text: str, is_made: bool) -> None:
            self._add_event(pair.name, None, text, who, "info" if is_made else "error")

        if not self.proof.make(ended):
            raise Unanswerable("a report is being made already", 409)
        return "started: the conservation report is being made"

    def _syphon_hosts(self, pair: ShownPair) -> list[str]:
        """Return the hosts whose syphons serve this pair: itself, or those of the same label."""
        if pair.syphon is not None:
            return [pair.id]
        pairs = self.live.board.table.pairs.values()
        found = [
            one.id
            for one in pairs
            if one.name == pair.name
            and one.syphon is not None
            and one.state == "running"
            and not one.read_only
        ]
        if not found:
            raise Unanswerable(f"no syphon of {pair.name} runs on this host", 409)
        return found

    async def _rate(self, pair: ShownPair, value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise Unanswerable(f"rate needs a value: messages a second, or {ADAPTIVE}")
        rate = value.strip().lower()
        for id_ in self._syphon_hosts(pair):
            await self._ask(id_, "rate", {"most_per_s": rate})
        if rate == ADAPTIVE:
            return "the syphon moves as many messages as the primary takes"
        return f"the syphon moves at most {rate} messages a second"

    async def _what_prune_does(self, pair: ShownPair) -> dict[str, Any]:
        """Return the empty queues that `prune` may delete; changes nothing."""
        secondary, keep = self.secondary_of(pair), self._queues_in_use(pair)
        found = await secondary.prunable(pair.name, keep)
        return {"ok": True, "text": f"the first {keep:,} queues are kept", "queues": found}

    async def _prune(self, pair: ShownPair, queues: object) -> str:
        secondary, keep = self.secondary_of(pair), self._queues_in_use(pair)
        named = queues if isinstance(queues, list) else []
        if not named or not all(isinstance(one, str) for one in named):
            raise Unanswerable("prune needs the queues that a dry run named")
        return await secondary.prune(pair.name, keep, named)

    def _queues_in_use(self, pair: ShownPair) -> int:
        """Return how many backlog queues the pairs of this label use, as this host knows."""
        pairs = self.live.board.table.pairs.values()
        counts = [
            len(one.queues)
            for one in pairs
            if one.name == pair.name and one.kind == "pair" and one.state == "running"
        ]
        if not any(counts):
            raise Unanswerable(
                f"no pair {pair.name} runs here to tell how many queues it uses: use"
                " `twinbus backlog prune --queues N`", 409,
            )  # fmt: skip
        return max(counts)

    async def _replay(self, pair: ShownPair, given: Mapping[str, Any]) -> str:
        queue, numbers = given.get("queue"), given.get("sequences")
        secondary = self.secondary_of(pair)
        if (
            not isinstance(numbers, list)
            or not 0 < len(numbers) <= SEQUENCES_MAX
            or not all(type(one) is int and one > 0 for one in numbers)
        ):
            raise Unanswerable(f"sequences must be 1 to {SEQUENCES_MAX:,} sequence numbers")
        # By name: what begins with the label may be a queue of an application.
        known = [one["path"] for one in await secondary.queues(pair.name)]
        if not isinstance(queue, str) or queue not in known:
            raise Unanswerable("queue must be a backlog queue of this pair")
        return await secondary.replay(queue, numbers)

    async def _ask(self, id_: str, verb: str, arguments: Mapping[str, str] | None = None) -> None:
        path = self.live.hosts.path_of(id_)
        if path is None:
            raise ControlError("this pair is no longer running")
        await asyncio.to_thread(ask, path, verb, arguments)

    def _record(self, pair: ShownPair, action: str, path: str | None, who: str, error: str) -> None:
        name, why = pair.name, f": {error}" if error else ""
        what = f"{action} {path}" if path else action
        level = "error" if error else "info"
        self._add_event(name, path, f"{what} (asked by {who}){why}", who, level)
        if self.ledger is not None:
            self.ledger.record(
                "action", pair=f"{name}+{pair.secondary}", namespace=name, entity=path,
                state=action, outcome="failed" if error else "ok",
                error=f"asked by {who}{why}"[:TEXT_MAX], view="client",
            )  # fmt: skip
            self.ledger.flush()

    def _add_event(self, name: str, path: str | None, text: str, who: str, level: str) -> None:
        self.live.board.add_event(
            name, "action", text, time.time(), path=path, level=level, who=who
        )
