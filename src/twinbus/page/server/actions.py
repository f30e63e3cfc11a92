"""What an operator does from the page. Each action is recorded in the ledger with who asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from twinbus.control.client import ask
from twinbus.errors import ControlError, TwinbusError
from twinbus.page.core.pair_table import Pair
from twinbus.page.server.live import LiveView
from twinbus.page.sources.jobs import JobResult
from twinbus.page.sources.proof import Proof

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
BY_COMMAND: Final = {
    "rate": "the rate of a running syphon cannot be changed: restart it with"
    " `twinbus syphon run --rate`",
    "prune": "use `twinbus backlog prune --dry-run`",
}
"""Actions that the page does not carry out, and the command that does."""

SEQUENCES_MAX: Final = 10_000
TEXT_MAX: Final = 300


class Unanswerable(Exception):
    """A request that cannot be answered; the text is for the person who made it."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class ReplaySource(Protocol):
    """What replays dead letters: the secondary."""

    def holds(self, secondary: str) -> bool: ...

    async def replay(self, queue: str, numbers: list[int]) -> str:
        """Replay dead letters of a backlog queue; return what was done."""


class DrainSource(Protocol):
    """What drains a backlog in a process of its own."""

    def moves(self, primary: str, secondary: str) -> bool:
        """Return whether both namespaces are those that the page was started with."""

    def drain(self, label: str, path: str | None, ended: Callable[[JobResult], None]) -> bool:
        """Start a drain of all destinations or of one; False: one of this label runs."""


class ActionLedger(Protocol):
    """A LedgerWriter, or one that keeps nothing."""

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None: ...
    def flush(self) -> None: ...


class SocketSource(Protocol):
    """Where the control socket of a pair is."""

    def path_of(self, id_: str) -> Path | None: ...


class Actions:
    """Carries out the actions of operators."""

    def __init__(
        self,
        live: LiveView,
        sockets: SocketSource,
        secondary: ReplaySource | None,
        ledger: ActionLedger | None,
        drains: DrainSource | None = None,
        proof: Proof | None = None,
        *,
        is_read_only: bool,
    ) -> None:
        self.is_read_only = is_read_only
        self._drains = drains
        self._proof = proof
        self._live = live
        self._sockets = sockets
        self._secondary = secondary
        self._ledger = ledger

    @property
    def offers(self) -> list[str]:
        """The actions and documents that depend on how the page was started."""
        drains = DRAINS if self._drains is not None else ()
        return [*drains, *(("proof", "prove") if self._proof is not None else ())]

    async def act(self, given: Mapping[str, Any], who: str) -> dict[str, Any]:
        """Carry out one action, and record it; Unanswerable if it is refused."""
        action, pair = str(given.get("action", "")), self._pair(given)
        if self.is_read_only:
            raise Unanswerable("this page is read-only", 403)
        path = given.get("path")
        if path is not None and not isinstance(path, str):
            raise Unanswerable("path must be a text")
        try:
            text = await self._carried_out(action, pair, path or "", given, who)
        except TwinbusError as error:
            self._record(pair, action, path, who, str(error))
            raise Unanswerable(str(error), 409) from error
        self._record(pair, action, path, who, "")
        return {"ok": True, "text": text, "ledger": self._ledger is not None}

    def _pair(self, given: Mapping[str, Any]) -> Pair:
        pair = self._live.board.table.pairs.get(str(given.get("pair", "")))
        if pair is None:
            raise Unanswerable("there is no such pair", 404)
        if pair["read_only"]:
            raise Unanswerable(f"this pair runs on {pair['host']}: use the page there", 403)
        return pair

    async def _carried_out(
        self, action: str, pair: Pair, path: str, given: Mapping[str, Any], who: str
    ) -> str:
        if action in STEERING:
            if not path:
                raise Unanswerable(f"{action} needs the path of an entity")
            await self._ask(pair["id"], action, {"path": path})
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
        if action in BY_COMMAND:
            raise Unanswerable(BY_COMMAND[action], 409)
        raise Unanswerable("there is no such action")

    def _drain(self, pair: Pair, path: str | None, who: str) -> str:
        if path == "":
            raise Unanswerable("only-entity needs the path of an entity")
        drains, name = self._drains, pair["name"]
        if drains is None or not drains.moves(pair["primary"], pair["secondary"]):
            raise Unanswerable(
                f"start `twinbus page` with the primary {pair['primary']} and the secondary"
                f" {pair['secondary']}, or use `twinbus syphon drain`", 409,
            )  # fmt: skip
        what = "drain-once" if path is None else "only-entity"

        def ended(result: JobResult) -> None:
            text = result.lines[-1] if result.lines else f"exit status {result.status}"
            level = "info" if result.status == 0 else "error"
            said = text if result.status == 0 else result.error or text
            self._add_event(name, path, f"{what} ended: {said}", who, level)

        if not drains.drain(name, path, ended):
            raise Unanswerable(f"a drain of {name} that this page started still runs", 409)
        return f"started: {name}'s backlog{f' for {path}' if path else ''} is drained once"

    def _prove(self, pair: Pair, who: str) -> str:
        if self._proof is None:
            raise Unanswerable("start `twinbus page` with --ledger to prove conservation", 409)

        def ended(text: str, is_made: bool) -> None:
            self._add_event(pair["name"], None, text, who, "info" if is_made else "error")

        if not self._proof.make(ended):
            raise Unanswerable("a report is being made already", 409)
        return "started: the conservation report is being made"

    def _syphon_hosts(self, pair: Pair) -> list[str]:
        """Return the hosts whose syphons serve this pair: itself, or those of the same label."""
        if pair["syphon"] is not None:
            return [pair["id"]]
        pairs = self._live.board.table.pairs.values()
        found = [
            one["id"]
            for one in pairs
            if one["name"] == pair["name"]
            and one["syphon"] is not None
            and one["state"] == "running"
            and not one["read_only"]
        ]
        if not found:
            raise Unanswerable(f"no syphon of {pair['name']} runs on this host", 409)
        return found

    async def _replay(self, pair: Pair, given: Mapping[str, Any]) -> str:
        queue, numbers = given.get("queue"), given.get("sequences")
        if self._secondary is None or not self._secondary.holds(pair["secondary"]):
            raise Unanswerable(f"start `twinbus page` with the secondary {pair['secondary']}", 409)
        if not isinstance(queue, str) or not queue.lower().startswith(f"{pair['name']}/".lower()):
            raise Unanswerable("queue must be a backlog queue of this pair")
        if (
            not isinstance(numbers, list)
            or not 0 < len(numbers) <= SEQUENCES_MAX
            or not all(type(one) is int and one > 0 for one in numbers)
        ):
            raise Unanswerable(f"sequences must be 1 to {SEQUENCES_MAX:,} sequence numbers")
        return await self._secondary.replay(queue, numbers)

    async def _ask(self, id_: str, verb: str, arguments: Mapping[str, str] | None = None) -> None:
        path = self._sockets.path_of(id_)
        if path is None:
            raise ControlError("this pair is no longer running")
        await asyncio.to_thread(ask, path, verb, arguments)

    def _record(self, pair: Pair, action: str, path: str | None, who: str, error: str) -> None:
        name = pair["name"]
        why = f": {error}" if error else ""
        what = f"{action} {path}" if path else action
        level = "error" if error else "info"
        self._add_event(name, path, f"{what} (asked by {who}){why}", who, level)
        if self._ledger is not None:
            self._ledger.record(
                "action", pair=f"{name}+{pair['secondary']}", namespace=name, entity=path,
                state=action, outcome="failed" if error else "ok",
                error=f"asked by {who}{why}"[:TEXT_MAX], view="client",
            )  # fmt: skip
            self._ledger.flush()

    def _add_event(self, name: str, path: str | None, text: str, who: str, level: str) -> None:
        self._live.board.add_event(
            name, "action", text, time.time(), path=path, level=level, who=who
        )
