"""The options of a pair (docs/options.md), with their defaults and ranges.

Durations are seconds or a timedelta, and are kept as given; the same name with `_s` at its end is
the duration in seconds, which the rest of Twinbus reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import PurePath
from typing import Literal, get_args, get_origin, get_type_hints

from twinbus.errors import error_text
from twinbus.servicebus.failures import DivertCause, of_error

Duration = timedelta | float
"""Seconds, or a timedelta."""

LEDGER_VARIABLE = "TWINBUS_LEDGER"
"""Environment variable with the ledger's location, used if the option is not set."""

DAY_S = 86_400.0

BACKLOG_QUEUE_COUNT_MAX = 100
FAILOVER_INTERVAL_MAX_S = 3_600.0
PING_INTERVAL_MAX_S = 1_800.0
HEALTHY_PINGS_MAX = 10
QUORUM_MAX = 100
SYPHON_POLL_MAX_S = 900.0
SYPHON_RATE_MIN, SYPHON_RATE_MAX = 0.01, 1_000_000.0
UNDELIVERABLE_GRACE_MAX_S = 30 * DAY_S
ATTEMPT_TIMEOUT_MIN_S, ATTEMPT_TIMEOUT_MAX_S = 0.1, 60.0

RETRY_TOTAL_MAX = 1_000
"""The SDK has no maximum. A caller that needs more than a thousand should retry by itself."""

BACKOFF_MAX_S = 3_600.0
"""The SDK has no maximum. More than an hour between two attempts of one call has no use."""

MESSAGE_SIZE_LIMIT_MIN, MESSAGE_SIZE_LIMIT_MAX = 1_024, 100 * 1_024 * 1_024
"""From the size of the aliases alone to the largest message of a Premium namespace."""


class Verdict(Enum):
    """Whether a failed attempt counts towards a failover of its entity."""

    COUNTS = "counts"
    """The entity cannot be reached or cannot answer: evidence for a failover."""
    IGNORED = "ignored"
    """The entity answered, or the fault is the caller's: no evidence."""


class _InSeconds:
    """The duration that has the name of this attribute without `_s`, in seconds."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._option = name.removesuffix("_s")

    def __get__(self, options: object, owner: type) -> float:
        return _seconds(getattr(options, self._option))


@dataclass(frozen=True, kw_only=True, slots=True)
class SendAvailabilityOptions:
    """How sends survive the loss of the primary namespace."""

    backlog_queue_count: int = 10
    """Backlog queues to create and use in the secondary, 1 to 100."""

    failover_interval: Duration = 60.0
    """Time without a successful send, after a counting failure, before the entity fails over.
    0: at once."""

    ping_primary_interval: Duration = 60.0
    """Time between pings of a failed-over entity, 1 s to 30 min."""

    ping_mode: Literal["message", "link"] = "message"
    """link: only attach to the entity, for a service that would deliver pings."""

    healthy_pings: int = 1
    """Answered pings in a row before the entity is healthy again; more damp a flapping primary."""

    enable_syphon: bool = False
    """Run the syphon inside this application."""

    syphon_rate: float | None = None
    """Most messages per second that this application's syphon forwards. None: as fast as the
    primary takes them without trouble; a set rate is slowed down by trouble too."""

    syphon_only: Collection[str] | None = None
    """Entities whose messages this application's syphon moves. None: all."""

    syphon_poll: Duration = 900.0
    """Length of one long-poll receive of the syphon, 1 s to 15 min."""

    undeliverable_grace: Duration = 21_600.0
    """How long the syphon keeps trying a missing destination before it dead-letters."""

    ttl_policy: Literal["full", "remaining"] = "full"
    """What the syphon restores: the whole original time to live, or what is left of it."""

    twins: Collection[str] | None = None
    """Entities whose namesake in the secondary takes their diverted messages as they are: names,
    or shell patterns such as `orders-*`; "*" is all. None: no twins, only backlog queues.
    The namesake must have the mark of `twinbus twins create`. The pair reads it when a sender is
    made and every 5 minutes. Reading needs the Manage right: without it an entity uses its twin
    only if this option has its very name, not a pattern, and the status says "not verified". A
    message that the twin cannot take goes to a backlog queue. Not with session_order="strict"."""

    twins_with_sessions: bool = False
    """True: messages with a session id are diverted to the twin too. A session may then be open on
    both sides, and its state is kept on each. False: they are diverted to the backlog queues."""

    session_order: Literal["relaxed", "strict"] = "relaxed"
    """strict: a session's messages keep their order across a failover (docs/guarantees.md)."""

    attempt_timeout: Duration = 5.0
    """Bound of one attempt: a send, a divert, a ping."""

    retry_total: int | None = None
    """Further attempts of one send after its first failed; None: until the failover is decided."""

    retry_backoff_factor: Duration = 0.8
    """Back-off before retry n is this times 2 to the power of n, as in the SDK."""

    retry_backoff_max: Duration = 120.0
    """Longest back-off between two attempts."""

    create_backlog_queues: bool = True
    """False: an administrator creates them, and this application needs no Manage right."""

    require_secondary: bool = False
    """True: pairing fails when the secondary cannot be reached."""

    accept_drift: bool = False
    """Use backlog queues with unsafe settings too; copies then get ids of their own."""

    strict_guards: bool = False
    """Refuse oversize messages and reserved property names also while the entity is healthy."""

    board: bool = True
    """Share evidence and recoveries with other hosts over a queue in the secondary. Needs Listen
    and Send on it; without them the pair goes on alone, and its status says so."""

    quorum: int = 2
    """Other hosts on which an entity has failed over, 1 to 100, before one failure is enough for a
    failover here."""

    message_size_limit: int | None = None
    """Largest message of a backlog queue in bytes. None: the link reports it."""

    links: Literal["sdk", "own"] = "sdk"
    """What carries the messages of paired senders. sdk: the official SDK's senders. own: links of
    Twinbus's own client, at a fraction of the processor time; messages and exceptions stay the
    SDK's. All senders of an entity then share a link, which has none of their names."""

    ledger: str | PurePath | None = None
    """Directory (or Hadoop URL, for Spark jobs) of the ledger. None: `$TWINBUS_LEDGER`, and without
    it no ledger. An empty string: no ledger, whatever the environment variable."""

    classify: Callable[[BaseException], Verdict] | None = None
    """Decides whether a failure counts, instead of the built-in table."""

    divert_on: Collection[DivertCause] = frozenset()
    """Answers of the primary that count as well, so that an entity which is disabled, full or
    throttled for the failover interval fails over too. They count whatever `classify` says. Not
    "full" or "throttled" with ping_mode="link": a link opens to such an entity."""

    failover_interval_s = _InSeconds()
    ping_primary_interval_s = _InSeconds()
    syphon_poll_s = _InSeconds()
    undeliverable_grace_s = _InSeconds()
    attempt_timeout_s = _InSeconds()
    retry_backoff_factor_s = _InSeconds()
    retry_backoff_max_s = _InSeconds()

    def __post_init__(self) -> None:
        _require_count("backlog_queue_count", self.backlog_queue_count, 1, BACKLOG_QUEUE_COUNT_MAX)
        _require_count("healthy_pings", self.healthy_pings, 1, HEALTHY_PINGS_MAX)
        _require_count("quorum", self.quorum, 1, QUORUM_MAX)
        if self.retry_total is not None:
            _require_count("retry_total", self.retry_total, 0, RETRY_TOTAL_MAX)
        if self.message_size_limit is not None:
            limits = MESSAGE_SIZE_LIMIT_MIN, MESSAGE_SIZE_LIMIT_MAX
            _require_count("message_size_limit", self.message_size_limit, *limits)
        if self.syphon_rate is not None:
            _require_rate(self.syphon_rate)
        if self.syphon_only is not None:
            _require_names("syphon_only", self.syphon_only)
        if self.twins is not None:
            if self.twins != "*":
                _require_names("twins", self.twins)
            if self.session_order == "strict":
                raise ValueError(
                    'twins and session_order="strict" exclude each other: a session may be open in'
                    f" both namespaces; leave out one of them; got twins={self.twins!r}"
                )
        for option, low, high in _DURATIONS:
            _require_duration(option, getattr(self, option), low, high)
        for option, choices in _CHOICES.items():
            _require_choice(option, getattr(self, option), choices)
        if self.ledger is not None and not isinstance(self.ledger, str | PurePath):
            raise ValueError(f"ledger must be a directory, a URL or None; got {self.ledger!r}")
        if self.classify is not None and not callable(self.classify):
            raise ValueError(
                f"classify must be None or a callable (error) -> Verdict; got {self.classify!r}"
            )
        _require_causes(self.divert_on)
        if self.ping_mode == "link" and {*self.divert_on} - {"disabled"}:
            raise ValueError(
                'ping_mode="link" and divert_on with "full" or "throttled" exclude each other: a'
                f" link opens to such an entity; got divert_on={self.divert_on!r}"
            )

    def ledger_location(self, environment: Mapping[str, str]) -> str | None:
        """The location of the ledger in this environment; None: there is no ledger."""
        if self.ledger is None:
            return environment.get(LEDGER_VARIABLE) or None
        return str(self.ledger) or None


_DURATIONS: tuple[tuple[str, float, float], ...] = (
    ("failover_interval", 0.0, FAILOVER_INTERVAL_MAX_S),
    ("ping_primary_interval", 1.0, PING_INTERVAL_MAX_S),
    ("syphon_poll", 1.0, SYPHON_POLL_MAX_S),
    ("undeliverable_grace", 0.0, UNDELIVERABLE_GRACE_MAX_S),
    ("attempt_timeout", ATTEMPT_TIMEOUT_MIN_S, ATTEMPT_TIMEOUT_MAX_S),
    ("retry_backoff_factor", 0.0, BACKOFF_MAX_S),
    ("retry_backoff_max", 0.0, BACKOFF_MAX_S),
)

_CHOICES: dict[str, tuple[str | bool, ...]] = {
    option: get_args(kind) or (True, False)
    for option, kind in get_type_hints(SendAvailabilityOptions).items()
    if kind is bool or get_origin(kind) is Literal
}


def _seconds(duration: Duration) -> float:
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    return float(duration)


def _require_count(option: str, value: object, low: int, high: int) -> None:
    # To Python True is an int, but it is no count.
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{option} must be a whole number from {low} to {high}; got {value!r}")


def _require_duration(option: str, value: object, low: float, high: float) -> None:
    numeric = isinstance(value, timedelta | int | float) and not isinstance(value, bool)
    seconds = _seconds(value) if numeric else math.nan  # type: ignore[arg-type]
    # A comparison with nan is false, so this refuses nan as well.
    if not low <= seconds <= high:
        raise ValueError(
            f"{option} must be from {low:g} to {high:g} seconds, as a number or a timedelta; "
            f"got {value!r}"
        )


def _require_rate(value: object) -> None:
    rate = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not SYPHON_RATE_MIN <= rate <= SYPHON_RATE_MAX:
        raise ValueError(
            f"syphon_rate must be from {SYPHON_RATE_MIN:g} to {SYPHON_RATE_MAX:.0f} messages a"
            f" second, or None; got {value!r}"
        )


def _require_names(option: str, value: object) -> None:
    # A string is a collection of strings too, but of letters.
    names = value if isinstance(value, Collection) and not isinstance(value, str) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{option} must be names of queues and topics, or None; got {value!r}")


def _require_causes(value: object) -> None:
    causes = value if isinstance(value, Collection) and not isinstance(value, str) else (None,)
    allowed = get_args(DivertCause)
    if not all(isinstance(cause, str) and cause in allowed for cause in causes):
        raise ValueError(f"divert_on must be a set of {', '.join(allowed)}; got {value!r}")


def _require_choice(option: str, value: object, choices: tuple[str | bool, ...]) -> None:
    # To Python 1 is equal to True.
    if not any(isinstance(value, type(choice)) and value == choice for choice in choices):
        allowed = " or ".join(repr(choice) for choice in choices)
        raise ValueError(f"{option} must be {allowed}; got {value!r}")


def classify(error: BaseException) -> Verdict:
    """Whether a failed attempt counts towards a failover: the built-in answer."""
    return Verdict.COUNTS if of_error(error).counts else Verdict.IGNORED


def judge(
    error: BaseException,
    own: Callable[[BaseException], object] | None,
    divert_on: Collection[str] = (),
) -> tuple[Verdict, str]:
    """The verdict of the user's own classifier, if there is one, and a complaint about it.

    What `divert_on` names counts in any case. If the classifier raises or does not return a
    Verdict, the built-in table judges instead: a bug in it must cost neither the failover nor the
    send's own error.
    """
    if of_error(error).diverted_on(divert_on):
        return Verdict.COUNTS, ""
    if own is None:
        return classify(error), ""
    kind = type(error).__name__
    try:
        verdict = own(error)
    except Exception as mistake:  # noqa: BLE001  # whatever it is, it is not the send's
        wrong = f"raised {error_text(mistake)} on {kind}"
    else:
        if isinstance(verdict, Verdict):
            return verdict, ""
        wrong = f"returned {verdict!r} for {kind}, not Verdict.COUNTS or Verdict.IGNORED"
    return classify(error), f"options.classify {wrong}; the built-in table judges instead"
