"""The verdict of `twinbus check`: limits, findings with their levels, the line of a plugin. Pure.

The line and the exit status follow the guidelines for Nagios plugins, which Icinga, Checkmk, Zabbix
and Sensu read too: `TWINBUS WARNING - text | figures`, exit status 0 OK, 1 WARNING, 2 CRITICAL,
3 UNKNOWN. A figure is `name=value[unit];warning;critical;minimum`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from twinbus.console.terminal.output import WrongUse
from twinbus.console.terminal.table import counted, duration, visible
from twinbus.console.terminal.times import seconds_of
from twinbus.status.document import EntityState, HostStatus, PairStatus
from twinbus.status.judgement import Severity, judgement_of

OFF: Final = ("", "off")


FINDINGS_MAX: Final = 5
"""Findings to name in the line; monitoring systems cut a long one. `--output json` has all."""


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


SEVERITY: Final = (CheckLevel.OK, CheckLevel.UNKNOWN, CheckLevel.WARNING, CheckLevel.CRITICAL)
"""Least first. What is known to be wrong is worse than what is not known."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    level: CheckLevel
    text: str


@dataclass(frozen=True, slots=True)
class PerfFigure:
    """A number for graphs."""

    name: str
    value: float
    unit: str = ""
    limits: Limits = NO_LIMITS

    def __str__(self) -> str:
        limits = (self.limits.warning, self.limits.critical)
        warning, critical = ("" if limit is None else f"{limit:.12g}" for limit in limits)
        return f"{self.name}={self.value:.12g}{self.unit};{warning};{critical};0"


@dataclass(frozen=True, slots=True)
class BacklogFigures:
    """What is known about the backlog; None: it is not known."""

    depth: int | None = None
    age_s: float | None = None
    dead_letters: int | None = None


@dataclass(frozen=True, slots=True)
class CheckedHost:
    """One pair or syphon that answered."""

    label: str
    process: str
    status: HostStatus
    at: float = 0.0
    """When it answered, in unix seconds."""


def findings_of(host: CheckedHost, unprotected: CheckLevel) -> list[CheckFinding]:
    """Return the state of one pair with its syphon, or of one syphon."""
    status = host.status
    if not isinstance(status, PairStatus):
        return [_finding(f"syphon of {host.process}", status, host.at, unprotected)]
    found = [_finding(host.process, status, host.at, unprotected)]
    if status.own_syphon is not None:
        syphon = f"syphon of {host.process}"
        found.append(_finding(syphon, status.own_syphon, host.at, unprotected))
    return found


def known_backlog(hosts: Sequence[CheckedHost]) -> BacklogFigures:
    """Return what the hosts know: messages that wait, and dead letters since the syphons began.

    Processes of one pair count the same backlog, so the largest count of each label is taken.
    """
    depths: dict[str, int] = {}
    syphons = []
    for host in hosts:
        status = host.status
        count = status.backlog_waiting if isinstance(status, PairStatus) else status.waiting
        if count is not None:
            depths[host.label] = max(count, depths.get(host.label, 0))
        if status.own_syphon is not None and status.own_syphon.queues:
            syphons.append(status.own_syphon)
    dead = sum(one.total("dead_lettered") for one in syphons) if syphons else None
    return BacklogFigures(sum(depths.values()) if depths else None, None, dead)


def backlog_findings(backlog: BacklogFigures, thresholds: Thresholds) -> list[CheckFinding]:
    """Return a finding for each known figure of the backlog."""
    found = []
    if backlog.depth is not None:
        level = thresholds.depth.level(backlog.depth)
        found.append(CheckFinding(level, f"backlog: {counted(backlog.depth, 'message')}"))
    if backlog.age_s is not None:
        level = thresholds.age_s.level(backlog.age_s)
        found.append(
            CheckFinding(level, f"oldest message in the backlog: {duration(backlog.age_s)}")
        )
    if backlog.dead_letters is not None:
        level = thresholds.dead_letters.level(backlog.dead_letters)
        found.append(CheckFinding(level, counted(backlog.dead_letters, "dead letter")))
    return found


def figures(
    hosts: Sequence[CheckedHost], backlog: BacklogFigures, thresholds: Thresholds
) -> list[PerfFigure]:
    """Return the numbers for graphs; those that are not known are left out."""
    pairs = [(one.status, one.at) for one in hosts if isinstance(one.status, PairStatus)]
    entities = [one for status, _ in pairs for one in status.entities.values()]
    exposed = sum(bool(judgement_of(status, at).exposed) for status, at in pairs)
    found = [
        PerfFigure("pairs", len(pairs)),
        PerfFigure("unprotected", exposed),
        PerfFigure("failed_over", sum(one.state is EntityState.FAILED_OVER for one in entities)),
        PerfFigure("raising", sum(bool(one.raising) for one in entities)),
        *(
            PerfFigure(name, sum(getattr(one, name) for one in entities), "c")
            for name in ("sent", "diverted", "raised")
        ),
    ]
    known = (
        ("backlog", backlog.depth, "", thresholds.depth),
        ("backlog_age", backlog.age_s, "s", thresholds.age_s),
        ("dead_letters", backlog.dead_letters, "", thresholds.dead_letters),
    )
    return found + [
        PerfFigure(name, round(value, 3), unit, limits)
        for name, value, unit, limits in known
        if value is not None
    ]


def worst(findings: Sequence[CheckFinding]) -> CheckLevel:
    """Return the worst level; UNKNOWN if nothing was found out."""
    return max((one.level for one in findings), key=SEVERITY.index, default=CheckLevel.UNKNOWN)


def plugin_line(findings: Sequence[CheckFinding], numbers: Sequence[PerfFigure]) -> str:
    """Return the line: what is wrong, worst first, or all findings if nothing is; the figures."""
    level = worst(findings)
    ranked = sorted(findings, key=lambda one: -SEVERITY.index(one.level))
    wrong = [one for one in ranked if one.level is not CheckLevel.OK] or ranked
    texts = [one.text for one in wrong[:FINDINGS_MAX]]
    if len(wrong) > FINDINGS_MAX:
        texts.append(f"and {len(wrong) - FINDINGS_MAX} more")
    # A bar separates the figures from the text.
    text = visible("; ".join(texts)).replace("|", "/")
    return " | ".join(filter(None, (f"TWINBUS {level} - {text}", " ".join(map(str, numbers)))))


def _finding(who: str, status: HostStatus, at: float, unprotected: CheckLevel) -> CheckFinding:
    """Return the judgement of a status; a syphon that waits for its lease is well."""
    levels = {
        Severity.ATTENTION: CheckLevel.WARNING,
        Severity.EXPOSED: unprotected,
        Severity.RAISES: CheckLevel.CRITICAL,
    }
    judgement = judgement_of(status, at)
    found = [CheckFinding(levels[one.severity], one.text) for one in judgement.concerns]
    text = "; ".join(judgement.attention) or judgement.sends or "running"
    return CheckFinding(worst(found) if found else CheckLevel.OK, f"{who}: {text}")


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
