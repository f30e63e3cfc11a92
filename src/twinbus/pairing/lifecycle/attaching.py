"""Attaches links to backlog queues and sends nothing: to find, verify and probe them.

    a search   without Manage, at each wanted queue: is it there, enabled and open to us
    a check    every few minutes, at any queue: shows that one can take over
    a probe    every few seconds while queues are pulled, at one of these: an answer returns it

A sender that attaches shows that the namespace answers, the credential is valid and has Send, and
the queue is there and enabled. A receiver without credit shows, where Listen is held, that it
neither requires sessions nor forwards its messages: the service refuses a plain receiver in both
cases. What this cannot show is in `Findings.not_verified`. Every link is closed again: a healthy
pair holds no connection to the secondary.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.errors import MissingRightError, error_text
from twinbus.namespace.tokens import refusal_error
from twinbus.pairing.core.backlog import DANGERS
from twinbus.pairing.sdk.administration import Findings, SecondaryUnreachable, first_line
from twinbus.pairing.sdk.pooled_sender import Peeker
from twinbus.pairing.sdk.sender_pool import SenderPool, open_only
from twinbus.servicebus.failures import FailureMeaning, is_answer, of_error, refusing_setting

if TYPE_CHECKING:
    from twinbus.pairing.sending.shared_state import SharedState

log = logging.getLogger("twinbus.pairing")

QUEUES_MAX: Final = 3
"""Queues that one check tries, if those before refuse."""

ATTACHES_AT_ONCE: Final = 4
"""Queues that are attached to at the same time. Opening a link is mostly waiting, and a hundred
connections at once would burden both ends."""

NEVER_SHOWN: Final = (
    "time to live", "auto-delete on idle", "delivery count", "forwarding of dead letters",
)  # fmt: skip
SHOWN_TO_RECEIVERS: Final = ("sessions", "forwarding")

SETTING_TEXTS: Final = {
    "sessions": f"it requires sessions: {DANGERS['requires_session']}",
    "forwarding": f"it forwards its messages: {DANGERS['forward_to']}",
}
"""Why a queue with this setting is left out."""


class LinkSearch:
    def __init__(self, state: SharedState, findings: Findings, *, fails_fast: bool) -> None:
        """`fails_fast`: the first missing right ends the search; else it ends with it."""
        self._state = state
        self._findings = findings
        self._fails_fast = fails_fast
        self._gate = asyncio.Semaphore(ATTACHES_AT_ONCE)
        self._unsure: list[str] = []
        self._missing_right: MissingRightError | None = None

    async def run(self, paths: list[str]) -> None:
        """Search for these queues; the findings grow as answers come in.

        MissingRightError; SecondaryUnreachable if not every queue answered.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for path in paths:
                    group.create_task(self._find(path))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        if self._missing_right is not None:
            raise self._missing_right
        if self._unsure:
            raise SecondaryUnreachable("; ".join(sorted(self._unsure)))

    async def _find(self, path: str) -> None:
        async with self._gate:
            try:
                await self._attach_sender(path)
            except Exception as error:  # noqa: BLE001  # every failure is judged
                self._not_attached(path, error)
                return
            self._findings.drained.append(path)
            refusal = await self._attach_receiver(path)
        if refusal is None or self._state.options.accept_drift:
            self._findings.usable.append(path)
        else:
            self._findings.left_out[path] = refusal

    async def _attach_sender(self, path: str) -> None:
        pool = self._state.backlog_pool(path)
        # A link that is open already would show nothing.
        pool.invalidate()
        pooled = pool.take()
        if pooled is not None:
            # Else its senders are all in use, by calls that are diverted there now.
            await pool.attempt(pooled, open_only, self._state.policy.attempt_timeout_s)

    async def _attach_receiver(self, path: str) -> str | None:
        """Why the queue must not be used, as far as a receiver can tell; None: no reason."""
        error = await receiver_error(self._state, path)
        if error is None:
            self._findings.not_verified[path] = NEVER_SHOWN
            return None
        setting = refusing_setting(error, path)
        if setting is not None:
            return SETTING_TEXTS[setting]
        if of_error(error).unusable:
            # It gives no messages back, or was deleted since its sender attached.
            return first_line(error)
        self._findings.not_verified[path] = (*SHOWN_TO_RECEIVERS, *NEVER_SHOWN)
        return None

    def _not_attached(self, path: str, error: Exception) -> None:
        why, meaning = first_line(error) or type(error).__name__, of_error(error)
        endpoint = self._state.secondary.endpoint
        if meaning is FailureMeaning.UNAUTHORIZED:
            missing = refusal_error(
                endpoint,
                why,
                f"diverting to {path} in {endpoint} needs the Send right, and the credential was"
                f" refused ({why}); grant it, or give another",
            )
            if self._fails_fast:
                raise missing from error
            self._missing_right = self._missing_right or missing
            if path in self._state.rotation.queues:
                return
        elif meaning in (FailureMeaning.UNREACHABLE, FailureMeaning.BUSY):
            if not (self._findings.drained or self._findings.left_out):
                # Every other queue would give the same answer, or none.
                raise SecondaryUnreachable(f"{endpoint}: {why}") from error
            self._unsure.append(f"{path}: {why}")
            return
        elif not meaning.pulls_queue:
            # Not an answer of the queue: a proxy that fails, a bug.
            self._unsure.append(f"{path}: {why}")
        self._findings.left_out[path] = why


async def receiver_error(state: SharedState, path: str) -> Exception | None:
    """The error of a receiver that attaches to a backlog queue, and receives nothing."""
    make = partial(Peeker, state.secondary_sdk, path)
    pool = SenderPool(make, state.secondary.resolve, state.closer)  # type: ignore[arg-type]
    return await _attach_error(pool, state.policy.attempt_timeout_s)


async def _attach_error(pool: SenderPool, timeout_s: float) -> Exception | None:
    """The error of a link that is opened and closed again; None: it was attached."""
    pooled = pool.take()
    assert pooled is not None
    try:
        await pool.attempt(pooled, open_only, timeout_s)
    except Exception as error:  # noqa: BLE001  # the caller judges it
        return error
    finally:
        await pool.close(0.0)
    return None


class ProtectionMonitor:
    """Verifies the protection of a pair and probes its pulled queues, from `start` to `close`."""

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self._task: asyncio.Task[None] | None = None
        self._checks = 0
        self._woken = asyncio.Event()

    def start(self) -> None:
        self._state.verification.begin(self._state.now, self._state.jitter())
        self._state.on_pull = self._woken.set
        self._task = asyncio.create_task(self._run(), name="verify the protection")

    async def close(self) -> None:
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
                    await self.check()
                elif probe is not None and probe[1] <= now:
                    await self._probe(probe[0])
                else:
                    # A divert that is stored meanwhile, or a queue that is pulled, moves the time.
                    await self._wait(wait_s if probe is None else min(wait_s, probe[1] - now))
            except Exception as error:  # it is logged, and the next check may succeed
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

    async def check(self) -> None:
        """Attach to a backlog queue, another one each time, until one answers as it should."""
        state, verification = self._state, self._state.verification
        # A pulled queue that does not answer says nothing about the others.
        queues = state.rotation.available(state.now) or state.rotation.queues
        if not queues:
            # UNPROTECTED says it; the search goes on.
            verification.failed("", state.now, state.jitter())
            return
        was_failed, reason, self._checks = bool(verification.error), "", self._checks + 1
        for place in range(min(QUEUES_MAX, len(queues))):
            queue = queues[(self._checks + place) % len(queues)]
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
        timeout_s = self._state.policy.attempt_timeout_s
        return await _attach_error(self._state.sdk_pool(queue), timeout_s)
