"""First attempts on the primary that a thread of the application makes past the event loop.

The thread asks whether it may, makes the attempt, and reports what came of it. Only what is simple
goes this way: one small message, to a healthy entity, with time for a whole attempt. What follows a
failure is decided here on the loop, as after any first attempt.
"""

from __future__ import annotations

from typing import Any, Final

from azure.servicebus import ServiceBusMessage

from twinbus.pairing.core.failover import EntityState
from twinbus.pairing.sdk.guards import quick_check
from twinbus.pairing.sending.calls import SendTarget
from twinbus.pairing.sending.send_calls import call_of
from twinbus.servicebus.failures import is_timeout

DIRECT_BYTES: Final = 8 * 1_024
"""The largest body for the SDK's sync sender: it gives up a write after 0.2 s, in which a distant
peer may not take a larger message."""

HEALTHY: Final = EntityState.HEALTHY


class DirectAttempts:
    """The attempts of one sender's callers."""

    def __init__(self, target: SendTarget) -> None:
        self._target = target
        self._state, self._entity = target.state, target.entity
        self.timeout_s = target.state.policy.attempt_timeout_s
        self._is_allowed = target.sessions is None and target.state.tracing is None
        self._record_message = target.state.recorder.message_recorder(target.entity.path)

    def measured(self, message: Any, timeout: Any) -> tuple[str, int] | None:
        """Id and size of a message that may go this way; None: it may not. From any thread."""
        if type(message) is not ServiceBusMessage or not self._is_allowed:
            return None
        if self._entity.failover.state is not HEALTHY or self._target.pool.closed:
            return None
        if self._state.closed:
            return None
        if timeout is not None and not (
            type(timeout) in (int, float) and timeout > self.timeout_s + 1
        ):
            return None
        message_id, size_bytes = quick_check(message, self._state.limits.watched) or (None, None)
        if message_id is None or size_bytes is None or size_bytes > DIRECT_BYTES:
            return None
        return message_id, size_bytes

    def succeeded(self, began: float, measured: tuple[str, int]) -> None:
        """Report a success to ledger and entity. From any thread."""
        if self._record_message is not None:
            self._record_message(int((self._state.now - began) * 1e6), measured)
        self._entity.succeeded_elsewhere()

    def interrupted(self, message: ServiceBusMessage, error: BaseException, began: float) -> None:
        """Report an attempt that its caller has interrupted: its result is unknown."""
        call_of(self._target, message, None).record(began, error)
        self._entity.call_raised(1, error)

    async def failed(
        self, message: ServiceBusMessage, error: Exception, began: float, deadline: float | None
    ) -> None:
        """Go on with the call after its first attempt failed, until the caller's deadline."""
        if is_timeout(error):
            cause, error = error, TimeoutError()
            error.__cause__ = cause
        try:
            call = call_of(self._target, message, deadline)
            await call.run_after(error, began, self.timeout_s)
        except BaseException as raised:
            self._entity.call_raised(1, raised)
            raise
