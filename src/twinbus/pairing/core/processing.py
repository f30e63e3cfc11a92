"""What a processor decides: how much to receive, how a message is settled, when a lock is renewed.

    slots = ReceiveSize(concurrency=8)
    slots.wanted(running=3)                 -> at most 5 messages, fewer if the queue is empty
    settlement_of(error, is_settled=False, is_lock_lost=False)   -> Settlement.ABANDON
    lock = LockRenewal(60.0, now, until=now + 300.0)
    lock.timer_at                           -> half of the lock from now
    Reconnection().failed(chance)           -> seconds until the next attempt

Pure: time and chance are arguments. `receiving.processor` and `receiving.handling` perform it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from typing import Any, Final, TypedDict

from twinbus.errors import DeadLetterError
from twinbus.options import Duration
from twinbus.pairing.core.secondary import jittered

CONCURRENCY_MAX: Final = 1_000
DURATION_MAX_S: Final = 86_400.0
"""A day. A handler that takes longer should store its work and complete the message first."""

SINGLE_WAIT_S: Final = 20.0
"""How long a receive of one message waits. It also bounds a reconnection inside the SDK."""

BATCH_WAIT_S: Final = 0.3
"""How long a receive of several messages waits. The SDK's does not return as long as fewer have
come, if another call on the same connection happened to read them."""

LOCK_MIN_S: Final = 1.0
LOCK_MAX_S: Final = 300.0
"""The longest lock of the service. A clock that is wrong by minutes must not delay a renewal."""

RENEWAL_RETRY_S: Final = 5.0
RENEWAL_PACE_S: Final = 0.5
"""Longest and shortest time between two attempts to renew a lock."""

RECONNECT_FIRST_S: Final = 0.5
RECONNECT_MAX_S: Final = 30.0

FRESH_AFTER: Final = 2
"""Failed receives in a row on one receiver before it is replaced. The first one is forgiven: both
the SDK's receiver and a paired one reconnect by themselves."""


SILENT_S: Final = 120.0
"""After this time without a message a plain receiver of the SDK is replaced. It can fall silent
without an error, and then looks like one of an empty queue. A new link is not billed."""


class ProcessOptions(TypedDict, total=False):
    """The options of a processor, for type checkers; `ProcessSettings` has the defaults."""

    concurrency: int
    sessions: int | None
    session_idle: Duration
    max_lock_renewal: Duration
    stop_timeout: Duration
    on_error: Callable[[Exception, Any], object] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSettings:
    """The options of a processor. A value out of range is a ValueError."""

    concurrency: int = 1
    """Handlers that run at once, 1 to 1,000; not with `sessions`."""

    sessions: int | None = None
    """Sessions that are handled at once, 1 to 1,000, each in order; None: the entity has none."""

    session_idle: Duration = 5.0
    """Time without a message after which a session is closed and the next one accepted."""

    max_lock_renewal: Duration = 300.0
    """How long the lock of one message, or of its session, is renewed; 0: not at all."""

    stop_timeout: Duration = 30.0
    """How long a stop waits for running handlers before it cancels them."""

    on_error: Callable[[Exception, Any], object] | None = None
    """Called with each error and its message, or None if receiving failed."""

    def __post_init__(self) -> None:
        _require_count("concurrency", self.concurrency)
        if self.sessions is not None:
            _require_count("sessions", self.sessions)
            if self.concurrency != 1:
                raise ValueError(
                    f"sessions={self.sessions} handles one message of each session at a time, so"
                    f" concurrency must not be given; got concurrency={self.concurrency}"
                )
        _require_duration("session_idle", self.session_idle, 0.1)
        _require_duration("max_lock_renewal", self.max_lock_renewal, 0.0)
        _require_duration("stop_timeout", self.stop_timeout, 0.0)
        if self.on_error is not None and not callable(self.on_error):
            raise TypeError(
                f"on_error must be a function of the error and the message; got {self.on_error!r}"
            )

    @classmethod
    def of(cls, options: ProcessOptions) -> ProcessSettings:
        """Return the settings of these options; TypeError: one of them does not exist."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise TypeError(f"a processor takes {', '.join(known)}; got {name!r}")
        return cls(**options)

    @property
    def handlers_max(self) -> int:
        """The number of handlers that run at once."""
        return self.sessions or self.concurrency

    @property
    def session_idle_s(self) -> float:
        return _seconds(self.session_idle)

    @property
    def max_lock_renewal_s(self) -> float:
        return _seconds(self.max_lock_renewal)

    @property
    def stop_timeout_s(self) -> float:
        return _seconds(self.stop_timeout)


def _seconds(duration: Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def _require_count(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= CONCURRENCY_MAX:
        raise ValueError(
            f"{option} must be a whole number from 1 to {CONCURRENCY_MAX}; got {value!r}"
        )


def _require_duration(option: str, value: object, low_s: float) -> None:
    is_duration = isinstance(value, timedelta | int | float) and not isinstance(value, bool)
    seconds = _seconds(value) if is_duration else math.nan  # type: ignore[arg-type]
    # A comparison with nan is false, so this refuses nan as well.
    if not low_s <= seconds <= DURATION_MAX_S:
        raise ValueError(
            f"{option} must be from {low_s:g} to {DURATION_MAX_S:g} seconds, as a number or a"
            f" timedelta; got {value!r}"
        )


class Settlement(Enum):
    """How a message is settled when its handler has ended."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEAD_LETTER = "dead-letter"
    NOTHING = "nothing"
    """The handler settled it, or its lock is lost and the service delivers it again."""


def settlement_of(
    error: BaseException | None, *, is_settled: bool, is_lock_lost: bool
) -> Settlement:
    """Return how to settle a message whose handler ended with this error, or None."""
    if is_settled or is_lock_lost:
        return Settlement.NOTHING
    if error is None:
        return Settlement.COMPLETE
    return Settlement.DEAD_LETTER if isinstance(error, DeadLetterError) else Settlement.ABANDON


class ReceiveSize:
    """How many messages to receive at once: never more than can be handled at once.

    It doubles while receives are full, because more messages wait then, and else is 1. A message
    that comes alone is therefore received alone, and its handler starts immediately.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._size = 1

    def wanted(self, running: int) -> int:
        """Return the number of messages to request; 0: every slot is in use."""
        assert 0 <= running <= self._concurrency
        return min(self._concurrency - running, self._size)

    @staticmethod
    def wait_s(wanted: int) -> float:
        """Return how long a receive of this many messages waits."""
        return SINGLE_WAIT_S if wanted == 1 else BATCH_WAIT_S

    def received(self, count: int, wanted: int) -> None:
        """Note how many of the requested messages came."""
        if count < wanted:
            self._size = 1
        elif wanted == self._size:
            self._size = min(2 * self._size, self._concurrency)


class LockRenewal:
    """When one lock is renewed: at half of its time, until `until`, or until it is lost."""

    __slots__ = ("_expires_at", "is_lost", "timer_at", "until")

    def __init__(self, remaining_s: float, now: float, until: float) -> None:
        self.until = until
        self.is_lost = False
        self.timer_at: float | None = None
        """When to renew it; None: not any more."""
        self.renewed(remaining_s, now)

    def renewed(self, remaining_s: float, now: float) -> None:
        """The lock is held for this time from now on."""
        remaining_s = min(max(remaining_s, LOCK_MIN_S), LOCK_MAX_S)
        self._expires_at = now + remaining_s
        self._arm(now + remaining_s / 2)

    def extend(self, until: float, now: float) -> None:
        """Renew it until this time, which is later; for a session with a new message."""
        self.until = max(self.until, until)
        if self.timer_at is None and not self.is_lost:
            self._arm(now + max(self._expires_at - now, 0.0) / 2)

    def failed(self, now: float) -> None:
        """An attempt to renew it had no success; it is lost when its time is over."""
        left_s = self._expires_at - now
        if left_s <= 0:
            self.lose()
        else:
            self._arm(now + max(min(left_s / 2, RENEWAL_RETRY_S), RENEWAL_PACE_S))

    def lose(self) -> None:
        """The service says that the lock is lost, or its time is over."""
        self.is_lost = True
        self.timer_at = None

    def _arm(self, at: float) -> None:
        self.timer_at = at if at < self.until and not self.is_lost else None


class Reconnection:
    """How long to wait after failed receives, for ever, and when to make a new receiver."""

    def __init__(self) -> None:
        self.failures = 0
        """In a row."""
        self._heard_at: float | None = None

    @property
    def needs_fresh_receiver(self) -> bool:
        return self.failures >= FRESH_AFTER

    def heard(self, now: float) -> None:
        """The receiver was opened, or brought a message."""
        self._heard_at = now

    def is_silent(self, now: float) -> bool:
        """Whether the receiver has brought nothing for long."""
        return self._heard_at is not None and now - self._heard_at >= SILENT_S

    def failed(self, chance: float) -> float:
        """Count a failed receive; return the seconds to wait. `chance` is from 0 to 1."""
        self.failures += 1
        longest_s = RECONNECT_FIRST_S * 2 ** min(self.failures - 1, 10)
        return jittered(min(longest_s, RECONNECT_MAX_S), chance)

    def succeeded(self) -> None:
        self.failures = 0
