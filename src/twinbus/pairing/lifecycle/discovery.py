"""Finds the backlog queues of a pair, at its start and in the background for as long as it takes.

With the Manage right it uses the administration API and creates missing queues; without it
(`create_backlog_queues=False`) it attaches to each queue as a sender, which needs Send alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from twinbus.errors import BacklogUnavailableError, MissingRightError
from twinbus.pairing.core.announcements import BacklogQueueFound, BacklogQueueLeftOut
from twinbus.pairing.core.backlog import lease_path
from twinbus.pairing.core.classify import FailureMeaning, meaning_of
from twinbus.pairing.lifecycle.administration import (
    BacklogAdministration,
    Findings,
    SecondaryUnreachable,
    first_line,
)
from twinbus.pairing.sdk.sender_pool import open_only

if TYPE_CHECKING:
    from twinbus.pairing.sending.shared_state import SharedState

log = logging.getLogger("twinbus.pairing")

START_LIMIT_S: Final = 8.0
"""SPEC 2.5 gives pairing 10 s with a secondary that does not answer; closing takes the rest."""

RETRY_S: Final = 5.0
"""Time between two searches of a secondary that did not answer."""

REFUSED_RETRY_S: Final = 60.0
"""Time between two searches of one that refused: Azure takes minutes to apply a granted right."""


class Discovery:
    """The search for the backlog queues of one pair."""

    def __init__(self, state: SharedState, found: Callable[[list[str]], Awaitable[None]]) -> None:
        """`found` is called with queues to drain, each once, as they are found."""
        self._state = state
        self._found = found
        self._drained: list[str] = []
        self._new: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self.unreachable: str | None = None
        """Why the last search did not finish; None: the result for every queue is known."""

    async def start(self) -> None:
        """Search for some seconds; search on in the background for queues still unknown then.

        MissingRightError; BacklogUnavailableError if the secondary is required and missing.
        """
        await self._search()
        state = self._state
        is_protected = state.rotation.protected
        if state.options.require_secondary and not is_protected:
            absences = state.rotation.absences(state.now)
            why = self.unreachable or "; ".join(f"{q}: {w}" for q, w in sorted(absences.items()))
            raise BacklogUnavailableError(
                f"no backlog queue is available in {state.secondary.endpoint}, and the options say"
                f" require_secondary ({why})",
                queue_errors=dict(absences),
            )
        await self._report_new()
        if self.unreachable is not None:
            log.warning(
                "%s: the pair %s backlog queues (%s); sends use the primary, the search goes on",
                state.primary.label,
                "has only some" if is_protected else "is UNPROTECTED: it has no",
                self.unreachable,
            )
            self._task = asyncio.create_task(self._search_on())

    async def close(self) -> None:
        """Stop searching."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _search_on(self) -> None:
        wait_s, logged = RETRY_S, ""
        while True:
            await asyncio.sleep(wait_s)
            wait_s = RETRY_S
            try:
                await self._search()
                await self._report_new()
            except MissingRightError as error:
                # No caller waits any more: the status and the log report it.
                self.unreachable = str(error)
                wait_s = REFUSED_RETRY_S
                if self.unreachable != logged:
                    log.warning("%s: %s", self._state.primary.label, error)
                    logged = self.unreachable
            if self.unreachable is None:
                log.info("%s: the search for backlog queues is done", self._state.primary.label)
                return

    async def _search(self) -> None:
        """Search once for the queues that are still unknown."""
        state, findings = self._state, Findings()
        known = {*state.rotation.queues, *self._drained}
        paths = [path for path in state.paths if path not in known]
        try:
            async with asyncio.timeout(START_LIMIT_S):
                if state.options.create_backlog_queues:
                    await self._administer(paths, findings)
                else:
                    await self._attach(paths, findings)
        except (SecondaryUnreachable, TimeoutError) as error:
            self.unreachable = str(error) or f"no answer within {START_LIMIT_S:g} s"
        else:
            # Only now: while a search is in progress, the result of the last one holds.
            self.unreachable = None
        finally:
            self._apply(findings)

    async def _administer(self, paths: list[str], findings: Findings) -> None:
        state, options = self._state, self._state.options
        async with BacklogAdministration(
            state.secondary, state.recorder, timeout_s=options.attempt_timeout_s
        ) as admin:
            await admin.find_or_create(paths, findings, accept_drift=options.accept_drift)
            if options.session_order == "strict":
                await admin.ensure_lease_queue(lease_path(state.primary.label))

    async def _attach(self, paths: list[str], findings: Findings) -> None:
        unsure: list[str] = []
        # One after the other: a hundred connections at once would burden both ends.
        for path in paths:
            pool = self._state.backlog_pool(path)
            pooled = pool.take()
            assert pooled is not None
            try:
                await pool.attempt(pooled, open_only, self._state.policy.attempt_timeout_s)
            except Exception as error:  # noqa: BLE001  # every failure is judged
                why = first_line(error) or type(error).__name__
                self._raise_if_general(error, why, path)
                findings.left_out[path] = why
                if not meaning_of(error).pulls_queue:
                    # Not an answer of the queue: a proxy that fails, a bug.
                    unsure.append(f"{path}: {why}")
            else:
                findings.usable.append(path)
                findings.drained.append(path)
        if unsure:
            raise SecondaryUnreachable("; ".join(unsure))

    def _raise_if_general(self, error: Exception, why: str, path: str) -> None:
        """End the search for an error that every other queue would give as well."""
        endpoint, meaning = self._state.secondary.endpoint, meaning_of(error)
        if meaning in (FailureMeaning.UNREACHABLE, FailureMeaning.BUSY):
            raise SecondaryUnreachable(f"{endpoint}: {why}") from error
        if meaning is FailureMeaning.UNAUTHORIZED:
            raise MissingRightError(
                f"diverting to {path} in {endpoint} needs the Send right, and the credential was"
                f" refused ({why}); grant it, or give another"
            ) from error

    def _apply(self, findings: Findings) -> None:
        """Update the rotation, and announce what was found."""
        rotation, tell = self._state.rotation, self._state.listeners.tell
        for path, reason in findings.left_out.items():
            rotation.leave_out(path, reason)
            log.warning("%s is left out: %s", path, reason)
            tell(BacklogQueueLeftOut(at=time.time(), queue=path, reason=reason))
        # In the order of their paths, not of the answers.
        for path in sorted(findings.usable, key=self._state.paths.index):
            rotation.add(path)
            drift = tuple(map(str, findings.drift.get(path, ())))
            tell(BacklogQueueFound(at=time.time(), queue=path, drift=drift))
        for path, found in findings.drift.items():
            log.warning(
                "%s differs from what we would create: %s", path, "; ".join(map(str, found))
            )
        self._state.check_protection("backlog queues were found")
        self._new = sorted(findings.drained, key=self._state.paths.index)
        self._drained += self._new

    async def _report_new(self) -> None:
        new, self._new = self._new, []
        if new:
            await self._found(new)
