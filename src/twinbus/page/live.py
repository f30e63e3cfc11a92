"""The view as it is now: polls the hosts while somebody watches, and tells the watchers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any, Final

from twinbus.page.core.model import ShownProof, as_json
from twinbus.page.core.view import Board, headline_of
from twinbus.page.pollers import HostPoller, PeerPoller

log = logging.getLogger("twinbus.page")

POLL_EVERY_S: Final = 1.0
WATCHERS_MAX: Final = 50
"""Open streams at once: a person has one or two tabs."""


class LiveView:
    """Keeps the board current for as long as anybody watches."""

    def __init__(self, board: Board, hosts: HostPoller, peers: PeerPoller) -> None:
        self.board = board
        self.watchers = 0
        self.is_stopping = False
        self.proof: Callable[[], ShownProof | None] = lambda: None
        """The last conservation report of the page's ledger; None: it has no ledger."""
        self.hosts = hosts
        self._peers = peers
        self._polled_at = float("-inf")
        self._polling = asyncio.Lock()
        self._ticked = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._frames: dict[str, tuple[int, bytes]] = {}
        """The encoded documents, shared by all watchers."""

    async def refresh(self) -> None:
        """Poll, unless somebody did within the last second."""
        async with self._polling:
            if time.monotonic() - self._polled_at < POLL_EVERY_S / 2:
                return
            answers = await asyncio.to_thread(self.hosts.poll)
            now = time.time()
            self.board.observe(answers, now)
            self._peers.poll(now)
            self._polled_at = time.monotonic()

    def head(self) -> dict[str, Any]:
        """Return what is said above all pairs."""
        now = time.time()
        headline = headline_of(self.board.table.pairs.values(), now, self.proof())
        return {"now": now, "headline": headline, "peers": self._peers.states}

    def view(self) -> dict[str, Any]:
        return {**self.head(), "pairs": list(self.board.table.pairs.values())}

    async def stream(self, fixed: Mapping[str, Any]) -> AsyncGenerator[bytes, None]:
        """Yield the view, with `fixed` fields, and then what changes, as server-sent events."""
        with self._watching():
            await self.refresh()
            table = self.board.table
            version, removals, events = -1, table.removals, self.board.event_count
            while not self.is_stopping:
                if version < 0 or removals != table.removals:
                    self._frames = {
                        id_: frame for id_, frame in self._frames.items() if id_ in table.pairs
                    }
                    frames = [event_frame("view", {**self.view(), **fixed})]
                else:
                    changed = [id_ for id_, at in table.versions.items() if at > version]
                    frames = [self._pair_frame(id_) for id_ in changed]
                    frames.append(event_frame("head", self.head()))
                news = [one for one in self.board.events if one.number > events]
                frames += [event_frame("event", one) for one in news]
                version, removals, events = table.version, table.removals, self.board.event_count
                yield b"".join(frames)
                async with self._ticked:
                    await self._ticked.wait()

    def stop(self) -> None:
        """End the streams within a second."""
        self.is_stopping = True

    async def close(self) -> None:
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        async with self._ticked:
            self._ticked.notify_all()

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        self.watchers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="twinbus-page-poll")
        try:
            yield
        finally:
            self.watchers -= 1

    async def _run(self) -> None:
        """Poll once a second until nobody watches any more."""
        while self.watchers:
            began = time.monotonic()
            try:
                await self.refresh()
            except Exception:
                # The page goes on showing what it knows; a mistake of ours is in the log.
                log.exception("the hosts could not be polled")
            async with self._ticked:
                self._ticked.notify_all()
            await asyncio.sleep(max(0.05, POLL_EVERY_S - (time.monotonic() - began)))
        self._frames.clear()

    def _pair_frame(self, id_: str) -> bytes:
        version, table = self.board.table.versions[id_], self.board.table
        known = self._frames.get(id_)
        if known is None or known[0] != version:
            known = self._frames[id_] = version, event_frame("pair", table.pairs[id_])
        return known[1]


def event_frame(kind: str, document: Any) -> bytes:
    """Return one server-sent event. JSON has no bare line feed, so its data is one line."""
    data = json.dumps(document, separators=(",", ":"), default=as_json)
    return f"event: {kind}\ndata: {data}\n\n".encode()
