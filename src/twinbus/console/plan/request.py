"""What a person wrote for `twinbus plan`, checked and as numbers; WrongUse says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from twinbus.console.options import counting_rule, require_messaging_units
from twinbus.console.terminal.output import WrongUse
from twinbus.cost.arithmetic import CountingRule
from twinbus.cost.estimate import COUNT_MAX
from twinbus.cost.quantities import (
    KB,
    QuantityError,
    parse_duration,
    parse_rate,
    parse_size,
)
from twinbus.options import ATTEMPT_TIMEOUT_MAX_S, SendAvailabilityOptions
from twinbus.planning.advice import PlanLimits
from twinbus.planning.model import Traffic
from twinbus.planning.outages import parse_pattern
from twinbus.planning.outcomes import QUEUE_MAX_BYTES, PlanQuestion, grid

T = TypeVar("T")

MESSAGE_MAX_BYTES: Final = 256 * KB
"""Of a Standard namespace, which is what a pair is priced as."""

PATTERNS_MAX: Final = 10
SEED_MAX: Final = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRequest:
    """The options as they were written."""

    rate: str
    outages: tuple[str, ...]
    size: str
    entities: int
    clients: int
    sigma: float
    failover_interval: str
    ping_interval: str
    queues: str
    backlog_size: str
    rate_limit: str
    shared_limit: bool
    patience: str | None
    hang: str
    poll: str
    syphons: int
    full_years: float
    raised_per_million: float
    settlement: str
    messaging_units: int
    years: int
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanInput:
    """The same as numbers."""

    question: PlanQuestion
    limits: PlanLimits
    rule: CountingRule
    messaging_units: int


def read(asked: PlanRequest) -> PlanInput:
    """What was asked; WrongUse, in one line, where it makes no sense."""
    try:
        return _read(asked)
    except QuantityError as error:
        raise WrongUse(str(error)) from None


def _read(asked: PlanRequest) -> PlanInput:
    rule = counting_rule(asked.settlement)
    require_messaging_units(asked.messaging_units)
    if not 0 <= asked.seed <= SEED_MAX:
        raise WrongUse(f"--seed must be from 0 to {SEED_MAX}; got {asked.seed}")
    if not 1 <= len(asked.outages) <= PATTERNS_MAX:
        raise WrongUse(f"--outages may be given 1 to {PATTERNS_MAX} times")
    traffic = _traffic(asked)
    limit_per_s = float(parse_rate(asked.rate_limit, "--rate-limit"))
    if asked.shared_limit and limit_per_s <= traffic.rate_per_s:
        raise WrongUse(
            f"--rate-limit {asked.rate_limit} is shared with {asked.rate} of new messages and"
            " leaves nothing for the backlog; name a higher one, or leave --shared-limit out"
        )
    question = PlanQuestion(
        traffic=traffic,
        patterns=tuple(parse_pattern(pattern, asked.sigma) for pattern in asked.outages),
        settings=grid(
            _each("--failover-interval", asked.failover_interval, _seconds),
            _each("--ping-interval", asked.ping_interval, _seconds),
            _each("--queues", asked.queues, _count),
        ),
        queue_bytes=parse_size(asked.backlog_size, "--backlog-size", most=QUEUE_MAX_BYTES),
        drain_per_s=limit_per_s - (traffic.rate_per_s if asked.shared_limit else 0.0),
        poll_s=float(parse_duration(asked.poll, "--poll")),
        syphons=asked.syphons,
        years=asked.years,
        seed=asked.seed,
    )
    return PlanInput(
        question=question,
        limits=PlanLimits(full_share=asked.full_years, raised_per_million=asked.raised_per_million),
        rule=rule,
        messaging_units=asked.messaging_units,
    )


def _traffic(asked: PlanRequest) -> Traffic:
    for name, count in (("--entities", asked.entities), ("--clients", asked.clients)):
        if not 1 <= count <= COUNT_MAX:
            raise WrongUse(f"{name} must be from 1 to {COUNT_MAX:,}; got {count}")
    hang_s = float(parse_duration(asked.hang, "--hang", most=ATTEMPT_TIMEOUT_MAX_S))
    return Traffic(
        rate_per_s=float(parse_rate(asked.rate, "--rate")),
        size_bytes=parse_size(asked.size, "--size", most=MESSAGE_MAX_BYTES),
        entities=asked.entities,
        clients=asked.clients,
        patience_s=(
            default_patience_s(hang_s)
            if asked.patience is None
            else float(parse_duration(asked.patience, "--patience"))
        ),
        failed_attempt_s=hang_s,
    )


def default_patience_s(attempt_s: float) -> float:
    """How long a send without a timeout tries: the attempts, and the back-off between them."""
    options = SendAvailabilityOptions()
    waits: float = sum(
        min(options.retry_backoff_max_s, options.retry_backoff_factor_s * 2.0**retry)
        for retry in range(1, options.retry_total + 1)
    )
    return waits + (options.retry_total + 1) * attempt_s


def _each(name: str, text: str, one: Callable[[str, str], T]) -> list[T]:
    return [one(part, name) for part in text.split(",")]


def _seconds(text: str, name: str) -> float:
    return float(parse_duration(text, name))


def _count(text: str, name: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit() and len(text) < 10):
        raise WrongUse(f"{name} must be whole numbers with commas between, like 5,10; got {text!r}")
    return int(text)
