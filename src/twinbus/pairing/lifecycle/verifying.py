"""Attaches links to backlog queues and sends nothing: verifies the protection, probes pulled ones.

    a look     every few minutes, at any queue: shows that one can take over
    a probe    every few seconds while queues are pulled, at one of these: an answer returns it

An attached link shows that the namespace answers, the credential is valid and the queue is there
and enabled. The link is closed again: a healthy pair holds no connection to the secondary.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from twinbus.errors import error_text
from twinbus.pairing.core.classify import is_answer
from twinbus.pairing.sdk.sender_pool import open_only

if TYPE_CHECKING:
    from twinbus.pairing.sending.shared_state import SharedState

log = logging.getLogger("twinbus.pairing")

QUEUES_MAX: Final = 3
"""Queues that one look tries, if those before refuse."""


class ProtectionWatch:
    """Verifies the protection of a pair and probes its pulled queues, from `start` to `close`."""

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._task: asyncio.Task[None] | None = None
        self._looks = 0
        self._woken = asyncio.Event()

    def start(self) -> None:
        """Look in the background from now on."""
        self._state.verification.begin(self._state.now, self._state.jitter())
        self._state.on_pull = self._woken.set
        self._task = asyncio.create_task(self._run(), name="verify the protection")

    async def close(self) -> None:
        """Look no more. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _run(self) -> None:
        state, verification = self._state, self._state.verification
        while True:
            now = state.now
            wait_s = verification.wait_s(now)
            probe = state.rotation.next_probe(now)
            try:
                if wait_s <= 0:
                    await self.look()
                elif probe is not None and probe[1] <= now:
                    await self._probe(probe[0])
                else:
                    # A divert that is stored meanwhile, or a queue that is pulled, moves the time.
                    await self._wait(wait_s if probe is None else min(wait_s, probe[1] - now))
            except Exception as error:  # it is logged, and the next look may succeed
                log.exception("%s: the protection was not verified", state.primary.label)
                verification.failed(error_text(error), state.now, state.jitter())

    async def _wait(self, wait_s: float) -> None:
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._woken.wait()

    async def _probe(self, queue: str) -> None:
        state = self._state
        try:
            error = await self._attach(queue)
        finally:
            state.rotation.probe_ended(queue, state.now, state.jitter())
        state.attach_ended(queue, error)
        if error is None:
            state.check_protection("a backlog queue answers")

    async def look(self) -> None:
        """Attach to a backlog queue, another one each time, until one answers as it should."""
        state, verification = self._state, self._state.verification
        # A pulled queue that does not answer says nothing about the others.
        queues = state.rotation.available(state.now) or state.rotation.queues
        if not queues:
            # UNPROTECTED says it; the search goes on.
            verification.failed("", state.now, state.jitter())
            return
        was_failed, reason, self._looks = bool(verification.error), "", self._looks + 1
        for place in range(min(QUEUES_MAX, len(queues))):
            queue = queues[(self._looks + place) % len(queues)]
            error = await self._attach(queue)
            state.attach_ended(queue, error)
            if error is None:
                if was_failed:
                    log.warning("%s: protected again: %s answers", state.primary.label, queue)
                state.check_protection("a backlog queue answers")
                return
            reason = reason or f"{queue}: {error_text(error)}"
            if not is_answer(error):
                break  # The others would not answer either.
        verification.failed(reason, state.now, state.jitter())
        if not was_failed:
            log.warning("%s: NOT protected: %s", state.primary.label, reason)
        state.check_protection(reason)

    async def _attach(self, queue: str) -> Exception | None:
        pool = self._state.sdk_pool(queue)
        pooled = pool.take()
        assert pooled is not None
        try:
            await pool.attempt(pooled, open_only, self._state.policy.attempt_timeout_s)
        except Exception as error:  # noqa: BLE001  # the caller judges it
            return error
        finally:
            await pool.close(0.0)
        return None
