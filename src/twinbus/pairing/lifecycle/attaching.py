"""Finds backlog queues without the Manage right: attaches to each, and sends nothing (SPEC 2.4).

A sender that attaches shows that the queue is there and enabled, and that Send is held. A receiver
without credit shows, where Listen is held, that it neither requires sessions nor forwards its
messages: the service refuses a plain receiver in both cases. What this cannot show is in
`Findings.not_verified`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.errors import MissingRightError
from twinbus.namespace.signatures import refusal_error
from twinbus.pairing.core.backlog import DANGERS
from twinbus.pairing.core.classify import FailureMeaning, meaning_of, refusing_setting
from twinbus.pairing.lifecycle.administration import Findings, SecondaryUnreachable, first_line
from twinbus.pairing.sdk.pooled_sender import Peeker
from twinbus.pairing.sdk.sender_pool import SenderPool, open_only

if TYPE_CHECKING:
    from twinbus.pairing.sending.shared_state import SharedState

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
    """One search by links."""

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
        if meaning_of(error).unusable:
            # It gives no messages back, or was deleted since its sender attached.
            return first_line(error)
        self._findings.not_verified[path] = (*SHOWN_TO_RECEIVERS, *NEVER_SHOWN)
        return None

    def _not_attached(self, path: str, error: Exception) -> None:
        why, meaning = first_line(error) or type(error).__name__, meaning_of(error)
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
            if not self._findings.has_answers:
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
    pooled = pool.take()
    assert pooled is not None
    try:
        await pool.attempt(pooled, open_only, state.policy.attempt_timeout_s)
    except Exception as error:  # noqa: BLE001  # the caller judges it
        return error
    finally:
        await pool.close(0.0)
    return None
