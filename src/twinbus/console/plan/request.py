"""Reads the options of `twinbus plan`: numbers, or a WrongUse that says what is not valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from twinbus.console.cost.options import PlanOptions
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
class PlanInput:
    """The options as numbers."""

    question: PlanQuestion
    limits: PlanLimits
    rule: CountingRule
    messaging_units: int


def read(given: PlanOptions) -> PlanInput:
    """Return the options as numbers; WrongUse, in one line, if one is not valid."""
    try:
        return _read(given)
    except QuantityError as error:
        raise WrongUse(str(error)) from None


def _read(given: PlanOptions) -> PlanInput:
    rule = counting_rule(given.settlement)
    require_messaging_units(given.messaging_units)
    if not 0 <= given.seed <= SEED_MAX:
        raise WrongUse(f"--seed must be from 0 to {SEED_MAX}; got {given.seed}")
    if not 1 <= len(given.outages) <= PATTERNS_MAX:
        raise WrongUse(f"--outages may be given 1 to {PATTERNS_MAX} times")
    traffic = _traffic(given)
    limit_per_s = float(parse_rate(given.rate_limit, "--rate-limit"))
    if given.shared_limit and limit_per_s <= traffic.rate_per_s:
        raise WrongUse(
            f"--rate-limit {given.rate_limit} is shared with {given.rate} of new messages and"
            " leaves nothing for the backlog; name a higher one, or leave --shared-limit out"
        )
    question = PlanQuestion(
        traffic=traffic,
        patterns=tuple(parse_pattern(pattern, given.sigma) for pattern in given.outages),
        settings=grid(
            _each("--failover-interval", given.failover_interval, _seconds),
            _each("--ping-interval", given.ping_interval, _seconds),
            _each("--queues", given.queues, _count),
        ),
        queue_bytes=parse_size(given.backlog_size, "--backlog-size", most=QUEUE_MAX_BYTES),
        drain_per_s=limit_per_s - (traffic.rate_per_s if given.shared_limit else 0.0),
        poll_s=float(parse_duration(given.poll, "--poll")),
        syphons=given.syphons,
        years=given.years,
        seed=given.seed,
    )
    return PlanInput(
        question=question,
        limits=PlanLimits(full_share=given.full_years, raised_per_million=given.raised_per_million),
        rule=rule,
        messaging_units=given.messaging_units,
    )


def _traffic(given: PlanOptions) -> Traffic:
    for name, count in (("--entities", given.entities), ("--clients", given.clients)):
        if not 1 <= count <= COUNT_MAX:
            raise WrongUse(f"{name} must be from 1 to {COUNT_MAX:,}; got {count}")
    hang_s = float(parse_duration(given.hang, "--hang", most=ATTEMPT_TIMEOUT_MAX_S))
    return Traffic(
        rate_per_s=float(parse_rate(given.rate, "--rate")),
        size_bytes=parse_size(given.size, "--size", most=MESSAGE_MAX_BYTES),
        entities=given.entities,
        clients=given.clients,
        patience_s=(
            default_patience_s(hang_s)
            if given.patience is None
            else float(parse_duration(given.patience, "--patience"))
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
