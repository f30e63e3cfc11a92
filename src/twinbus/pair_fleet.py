"""The fleet of a pair: connects pairing with the files of the host, the board and the pinger."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Final

from twinbus.errors import error_text
from twinbus.fleet.board import NoticeBoard
from twinbus.fleet.board_watch import BoardWatch
from twinbus.fleet.fleet import Fleet
from twinbus.fleet.host_files import HostFiles, open_host
from twinbus.fleet.parts import AilingEntity, HostEvidence, LonelyHost, NoBoard
from twinbus.fleet.pinger import LeasedPinger
from twinbus.namespace.access import endpoint_of
from twinbus.pairing.core.failover import OthersFailedOver, OthersRecovered
from twinbus.run_directory import VARIABLE, RunDirectoryUnusable
from twinbus.status.document import EntityState
from twinbus.status.fleet import FleetStatus

if TYPE_CHECKING:
    from twinbus.pairing.sending.client import PairedClient
    from twinbus.pairing.sending.entity_monitor import EntityMonitor

OPEN_S: Final = 2.0
"""How long a pair that is closed waits for the files of its host to be opened."""

log = logging.getLogger("twinbus.fleet")

BOARD_TURNED_OFF = "the option board is False"


class PairFleet:
    """What the pair knows of other processes, and they of it, from `start` to `close`."""

    def __init__(self, client: PairedClient) -> None:
        self._client = client
        self._state = client.state
        self._fleet: Fleet | None = None
        self._files: HostFiles | None = None
        self._files_off = ""
        self._starting: asyncio.Task[None] | None = None
        client.state.fleet = self

    def start(self) -> None:
        """Begin in the background: nothing waits for the others."""
        self._starting = asyncio.create_task(self._start(), name="start the fleet")

    async def close(self) -> None:
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()
            await asyncio.wait({starting})
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            await fleet.close()
        if self._files is not None:
            await asyncio.to_thread(self._files.close)

    # What pairing tells and asks

    def changed(self, path: str) -> None:
        if self._fleet is not None:
            self._fleet.changed(path)

    def pings(self, path: str) -> bool:
        return self._fleet is None or self._fleet.pings(path)

    def ping_ended(self, path: str, *, answered: bool, may_send: bool = True) -> None:
        if self._fleet is not None:
            self._fleet.ping_ended(path, answered=answered, may_send=may_send)

    def said_of(self, path: str) -> str:
        return "" if self._fleet is None else self._fleet.said_of(path)

    def pinger_of(self, path: str) -> str:
        return "" if self._fleet is None else self._fleet.pinger_of(path)

    def status(self) -> FleetStatus:
        if self._fleet is None:
            return FleetStatus()
        return self._fleet.status(self._files_off)

    # What the fleet tells and asks

    def ailing(self) -> list[AilingEntity]:
        now = self._state.now
        return [
            _as_ailing(entity, now)
            for entity in self._state.monitors.all()
            if entity.failover.state is not EntityState.HEALTHY
        ]

    def others_failed_over(self, path: str, evidence: str) -> None:
        entity = self._state.monitors.find(path)
        if entity is not None:
            entity.tell(OthersFailedOver(evidence))

    def try_primary(self, path: str) -> None:
        entity = self._state.monitors.find(path)
        if entity is not None:
            entity.tell(OthersRecovered())

    async def _start(self) -> None:
        state = self._state
        host = await self._open_host()
        fleet = Fleet(self, host, quorum=state.options.quorum, environment=state.environment)
        board = self._board(fleet)
        pinger = LeasedPinger(
            endpoint_of(state.secondary),
            state.primary.label,
            state.options.ping_primary_interval_s,
            host,
            self.try_primary,
            lambda: not board.off,
            ledger=state.recorder.ledger,
            environment=state.environment,
        )
        fleet.start(board, pinger)
        self._fleet = fleet
        # An entity may have failed before.
        fleet.changed("")

    async def _open_host(self) -> HostEvidence:
        state = self._state
        place = state.primary.label, state.secondary.endpoint
        opening = asyncio.ensure_future(asyncio.to_thread(open_host, os.environ, *place))
        try:
            self._files = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread cannot be cancelled, and what it opens must be closed. On a disk that hangs
            # that comes later.
            opening.add_done_callback(_close_opened)
            await asyncio.wait({opening}, timeout=OPEN_S)
            raise
        except RunDirectoryUnusable as error:
            # The control socket has the same directory, and has warned.
            self._files_off = str(error)
        except Exception as error:
            log.exception("the files of this host cannot be used")
            self._files_off = error_text(error)
        if self._files is not None:
            return self._files
        self._files_off = self._files_off or f"{VARIABLE} is empty"
        return LonelyHost(state.environment.new_id().hex[:16])

    def _board(self, fleet: Fleet) -> BoardWatch | NoBoard:
        state, options = self._state, self._state.options
        if not options.board:
            return NoBoard(BOARD_TURNED_OFF)
        board = NoticeBoard(
            state.secondary,
            state.primary.label,
            ledger=state.recorder.ledger,
            environment=state.environment,
        )
        watch = BoardWatch(
            board,
            fleet,
            failover_interval_s=options.failover_interval_s,
            quorum=options.quorum,
            environment=state.environment,
        )
        watch.start()
        return watch


def _as_ailing(entity: EntityMonitor, now: float) -> AilingEntity:
    failover = entity.failover
    assert failover.since is not None
    own = failover.own_evidence
    return AilingEntity(
        path=entity.path,
        state=failover.state,
        is_evidence=failover.is_evidence(now),
        entered_at=failover.since,
        age_s=now - failover.since,
        kinds=() if own is None else tuple(f"{kind} {n}" for kind, n in own.kinds.items()),
    )


def _close_opened(opening: asyncio.Future[HostFiles | None]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opened = opening.result()
        if opened is not None:
            opened.close()
