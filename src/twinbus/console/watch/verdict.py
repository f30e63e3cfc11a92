"""The verdict of `twinbus check`: findings with their levels, and the line of a plugin. Pure.

The line and the exit status follow the guidelines for Nagios plugins, which Icinga, Checkmk, Zabbix
and Sensu read too: `TWINBUS WARNING - text | figures`, exit status 0 OK, 1 WARNING, 2 CRITICAL,
3 UNKNOWN. A figure is `name=value[unit];warning;critical;minimum`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from twinbus.console.control.status_text import UNREADABLE
from twinbus.console.syphon.text import obstacles
from twinbus.console.terminal.table import counted, duration, visible
from twinbus.console.watch.thresholds import NO_LIMITS, CheckLevel, Limits, Thresholds
from twinbus.pairing.core.judgement import Severity, judgement_of
from twinbus.pairing.core.status_reading import read_status
from twinbus.syphon.core.health import no_pump_text

FINDINGS_MAX: Final = 5
"""Findings to name in the line; monitoring systems cut a long one. `--output json` has all."""


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

    kind: str
    label: str
    process: str
    status: Mapping[str, Any]
    at: float = 0.0
    """When it answered, in unix seconds."""


def findings_of(host: CheckedHost, unprotected: CheckLevel) -> list[CheckFinding]:
    """Return the state of one pair with its syphon, or of one syphon."""
    status = host.status
    if host.kind != "pair":
        unpumped = status.get("without_pump", ())
        return [_syphon_finding(host, status["queues"], unpumped, is_paused=status["paused"])]
    found = [_pair_finding(host, unprotected)]
    if (queues := status.get("syphon")) is not None:
        is_paused = any(state["paused"] for state in queues.values())
        found.append(_syphon_finding(host, queues, is_paused=is_paused))
    return found


def known_backlog(hosts: Sequence[CheckedHost]) -> BacklogFigures:
    """Return what the hosts know: messages that wait, and dead letters since the syphons began.

    Processes of one pair count the same backlog, so the largest count of each label is taken.
    """
    depths: dict[str, int] = {}
    for host in hosts:
        for count in (host.status.get("backlog_waiting"), host.status.get("waiting")):
            if count is not None:
                depths[host.label] = max(count, depths.get(host.label, 0))
    queues = [
        state
        for host in hosts
        for state in (host.status.get("syphon") or host.status.get("queues") or {}).values()
    ]
    dead = sum(state["dead_lettered"] for state in queues) if queues else None
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
    pairs = [host.status for host in hosts if host.kind == "pair"]
    entities = [one for status in pairs for one in status["entities"].values()]
    found = [
        PerfFigure("pairs", len(pairs)),
        PerfFigure("unprotected", sum(_is_exposed(host) for host in hosts if host.kind == "pair")),
        PerfFigure("failed_over", sum(one["state"] == "failed over" for one in entities)),
        PerfFigure("raising", sum(bool(one.get("raising")) for one in entities)),
        *(
            PerfFigure(name, sum(one[name] for one in entities), "c")
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


def _is_exposed(host: CheckedHost) -> bool:
    try:
        return bool(judgement_of(read_status(host.status), host.at).exposed)
    except (AttributeError, KeyError, TypeError, ValueError):
        # The finding says that it cannot be read.
        return not host.status["protected"]


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


def _pair_finding(host: CheckedHost, unprotected: CheckLevel) -> CheckFinding:
    try:
        judgement = judgement_of(read_status(host.status), host.at)
    except (AttributeError, KeyError, TypeError, ValueError):
        return CheckFinding(CheckLevel.UNKNOWN, f"{host.process}: {UNREADABLE}")
    levels = {
        Severity.ATTENTION: CheckLevel.WARNING,
        Severity.EXPOSED: unprotected,
        Severity.RAISES: CheckLevel.CRITICAL,
    }
    found = [CheckFinding(levels[one.severity], one.text) for one in judgement.concerns]
    text = "; ".join(judgement.attention) or judgement.sends
    return CheckFinding(worst(found) if found else CheckLevel.OK, f"{host.process}: {text}")


def _syphon_finding(
    host: CheckedHost,
    queues: Mapping[str, Mapping[str, Any]],
    unpumped: Sequence[str] = (),
    *,
    is_paused: bool,
) -> CheckFinding:
    """Return the state of a syphon; one that waits for its lease is well."""
    why = (["paused"] if is_paused else []) + obstacles(queues, is_standing_by_left_out=True)
    why += [no_pump_text(unpumped)] if unpumped else []
    level = CheckLevel.WARNING if why else CheckLevel.OK
    return CheckFinding(level, f"syphon of {host.process}: {'; '.join(why) or 'running'}")
