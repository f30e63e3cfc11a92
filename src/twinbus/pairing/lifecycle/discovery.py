"""Finds the backlog queues of a pair, at its start and in the background for as long as it takes.

With the Manage right it asks the administration and creates what is missing; without it
(`create_backlog_queues=False`) it attaches to each queue as a sender, which needs Send alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from twinbus.errors import BacklogUnavailableError, MissingRightError
from twinbus.pairing.core.announcements import BacklogQueueFound, BacklogQueueLeftOut
from twinbus.pairing.core.backlog import lease_path
from twinbus.pairing.core.classify import FailureMeaning, meaning_of
from twinbus.pairing.lifecycle.administration import (
    BacklogAdministration,
    Findings,
    SecondaryUnreachable,
    in_words,
)
from twinbus.pairing.sdk.sender_pool import attempt

if TYPE_CHECKING:
    from twinbus.pairing.sending.client import PairedClient

__all__ = ["Discovery"]

log = logging.getLogger("twinbus.pairing")

START_LIMIT_S: Final = 8.0
"""SPEC 2.5 gives pairing 10 s with a secondary that does not answer; goodbyes take the rest."""

AGAIN_S: Final = 5.0
"""Between two looks at a secondary that did not answer."""

REFUSED_AGAIN_S: Final = 60.0
"""Between two looks at one that refused: a right that is granted takes Azure minutes to know."""


class Discovery:
    """The look for the backlog queues of one pair."""

    def __init__(self, client: PairedClient, found: Callable[[list[str]], Awaitable[None]]) -> None:
        """`found` is called with queues to drain, each once, as they are found."""
        self._client = client
        self._found = found
        self._drained: list[str] = []
        self._fresh: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self.unreachable: str | None = None
        """Why the last look brought no end; None: every queue is accounted for."""

    async def start(self) -> None:
        """Look for up to some seconds; what is missing then is looked for in the background.

        MissingRightError; BacklogUnavailableError if the secondary is required and not there.
        """
        await self._look()
        client = self._client
        if client.options.require_secondary and not client.rotation.protected:
            absences = client.rotation.absences(asyncio.get_running_loop().time())
            why = self.unreachable or "; ".join(f"{q}: {w}" for q, w in sorted(absences.items()))
            raise BacklogUnavailableError(
                f"no backlog queue can be had in {client.secondary.endpoint}, and the options say"
                f" require_secondary ({why})",
                queue_errors=dict(absences),
            )
        await self._hand_over()
        if self.unreachable is not None:
            state = "has only some" if client.rotation.protected else "is UNPROTECTED: it has no"
            log.warning(
                "%s: the pair %s backlog queues (%s); sends use the primary, the search goes on",
                client.primary.label, state, self.unreachable,
            )  # fmt: skip
            self._task = asyncio.create_task(self._go_on())

    async def close(self) -> None:
        """Stop looking."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _go_on(self) -> None:
        wait_s, told = AGAIN_S, ""
        while True:
            await asyncio.sleep(wait_s)
            wait_s = AGAIN_S
            try:
                await self._look()
                await self._hand_over()
            except MissingRightError as error:
                # Nobody waits for the answer any more: it stands in the status and the log.
                self.unreachable = str(error)
                wait_s = REFUSED_AGAIN_S
                if self.unreachable != told:
                    log.warning("%s: %s", self._client.primary.label, error)
                    told = self.unreachable
            if self.unreachable is None:
                log.info("%s: all backlog queues are accounted for", self._client.primary.label)
                return

    async def _look(self) -> None:
        """One look for what is not accounted for yet."""
        client, findings = self._client, Findings()
        known = {*client.rotation.queues, *self._drained}
        paths = [path for path in client.paths if path not in known]
        try:
            async with asyncio.timeout(START_LIMIT_S):
                if client.options.create_backlog_queues:
                    await self._administer(paths, findings)
                else:
                    await self._attach(paths, findings)
        except (SecondaryUnreachable, TimeoutError) as error:
            self.unreachable = str(error) or f"no answer within {START_LIMIT_S:g} s"
        else:
            # Only now: while a look is under way, the last one is what is known.
            self.unreachable = None
        finally:
            self._take(findings)

    async def _administer(self, paths: list[str], findings: Findings) -> None:
        client = self._client
        timeout_s = client.options.attempt_timeout_s
        async with BacklogAdministration(
            client.secondary, client.recorder, timeout_s=timeout_s
        ) as administration:
            await administration.find_or_create(
                paths, findings, accept_drift=client.options.accept_drift
            )
            if client.options.session_order == "strict":
                await administration.have_lease_queue(lease_path(client.primary.label))

    async def _attach(self, paths: list[str], findings: Findings) -> None:
        unsure: list[str] = []
        # One after the other: a hundred connections at once would be a burden to both ends.
        for path in paths:
            pool = self._client.backlog_pool(path)
            conduit = pool.take()
            assert conduit is not None
            try:
                await attempt(pool, conduit, _attached, self._client.options.attempt_timeout_s)
            except Exception as error:  # noqa: BLE001  # every failure is judged
                why = in_words(error) or type(error).__name__
                self._judge(error, why, path)
                findings.left_out[path] = why
                if not meaning_of(error).pulls_queue:
                    # Nothing that the queue itself has said: a proxy in trouble, a bug.
                    unsure.append(f"{path}: {why}")
            else:
                findings.usable.append(path)
                findings.drained.append(path)
        if unsure:
            raise SecondaryUnreachable("; ".join(unsure))

    def _judge(self, error: Exception, why: str, path: str) -> None:
        """Raise what ends the look: it would say the same of every other queue."""
        endpoint, meaning = self._client.secondary.endpoint, meaning_of(error)
        if meaning in (FailureMeaning.UNREACHABLE, FailureMeaning.BUSY):
            raise SecondaryUnreachable(f"{endpoint}: {why}") from error
        if meaning is FailureMeaning.UNAUTHORIZED:
            raise MissingRightError(
                f"diverting to {path} in {endpoint} needs the Send right, and the credential was"
                f" refused ({why}); grant it, or give another"
            ) from error

    def _take(self, findings: Findings) -> None:
        rotation, tell = self._client.rotation, self._client.listeners.tell
        for path, reason in findings.left_out.items():
            rotation.leave_out(path, reason)
            log.warning("%s is left out: %s", path, reason)
            tell(BacklogQueueLeftOut(at=time.time(), queue=path, reason=reason))
        # In the order of their names, not of the answers.
        for path in sorted(findings.usable, key=self._client.paths.index):
            rotation.add(path)
            drift = tuple(map(str, findings.drift.get(path, ())))
            tell(BacklogQueueFound(at=time.time(), queue=path, drift=drift))
        for path, found in findings.drift.items():
            log.warning(
                "%s differs from what we would create: %s", path, "; ".join(map(str, found))
            )
        self._client.check_protection("backlog queues were found")
        self._fresh = sorted(findings.drained, key=self._client.paths.index)
        self._drained += self._fresh

    async def _hand_over(self) -> None:
        fresh, self._fresh = self._fresh, []
        if fresh:
            await self._found(fresh)


async def _attached(sdk: Any) -> None:
    """Opening the link was the question."""
