"""The options of `twinbus check` that say what is a warning and what is critical. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from twinbus.console.terminal.output import WrongUse
from twinbus.console.terminal.times import seconds_of

OFF: Final = ("", "off")


class CheckLevel(StrEnum):
    """The state of a service, as monitoring systems name it, in the order of the exit status."""

    OK = "OK"
    WARNING = "WARNING"
    CRITICAL = "CRITICAL"
    UNKNOWN = "UNKNOWN"

    @property
    def exit_status(self) -> int:
        return list(CheckLevel).index(self)


@dataclass(frozen=True, slots=True)
class Limits:
    """The values above which a figure is a warning or critical; None: never."""

    warning: float | None = None
    critical: float | None = None

    def level(self, value: float) -> CheckLevel:
        if self.critical is not None and value > self.critical:
            return CheckLevel.CRITICAL
        if self.warning is not None and value > self.warning:
            return CheckLevel.WARNING
        return CheckLevel.OK


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """What `twinbus check` reports at which level."""

    age_s: Limits = NO_LIMITS
    depth: Limits = NO_LIMITS
    dead_letters: Limits = NO_LIMITS
    unprotected: CheckLevel = CheckLevel.CRITICAL
    """Level of a pair whose sends depend on the primary alone."""


def limits_of(text: str, option: str, *, is_time: bool = False) -> Limits:
    """Return the limits of an option, WARNING[,CRITICAL]; either may be `off`."""
    warning, *more = (_limit(part, option, is_time=is_time) for part in text.split(","))
    if len(more) > 1:
        raise WrongUse(f"{option} takes one or two limits, WARNING,CRITICAL; got {text!r:.60}")
    critical = more[0] if more else None
    if warning is not None and critical is not None and warning > critical:
        raise WrongUse(f"{option}: the first limit must not be above the second; got {text!r:.60}")
    return Limits(warning, critical)


def _limit(text: str, option: str, *, is_time: bool) -> float | None:
    if text.strip().lower() in OFF:
        return None
    if is_time:
        return seconds_of(text, option, least=0)
    if not (text.strip().isascii() and text.strip().isdigit()):
        raise WrongUse(f"{option} must be a number of messages from 0, or off; got {text!r:.60}")
    return int(text)
