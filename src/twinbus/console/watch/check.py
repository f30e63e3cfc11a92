"""`twinbus check`: asks the pairs of this machine, and the secondary if it is given, once.

The line and the exit status follow the guidelines for Nagios plugins, which Icinga, Checkmk, Zabbix
and Sensu read too: `TWINBUS WARNING - text | figures`, exit status 0 OK, 1 WARNING, 2 CRITICAL,
3 UNKNOWN. A figure is `name=value[unit];warning;critical;minimum`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

from twinbus.console.output import Output, WrongUse, show
from twinbus.console.times import seconds_of
from twinbus.control.sockets import RunningHost, ask, find, socket_directories
from twinbus.errors import ControlError, MissingRightError, TwinbusError
from twinbus.namespace.namespace import Namespace
from twinbus.status.document import EntityState, HostStatus, PairStatus, TwinContents
from twinbus.status.judgement import Severity, judgement_of
from twinbus.status.reading import StatusUnreadable, read_status
from twinbus.status.twins import is_fresh, twins_text
from twinbus.wording import counted, duration, visible

CONCURRENT_REQUESTS: Final = 16


@dataclass(frozen=True, slots=True)
class CheckRequest:
    pair: str | None
    secondary: Namespace | None
    """Where to count the backlog; None: only the pairs are asked."""
    label: str | None
    """Of --label: no other backlog is counted."""
    thresholds: Thresholds
    timeout_s: float
    primary_label: str | None = None
    """Of the primary; a pair that runs may have been given another one."""


def run_check(request: Callable[[], CheckRequest], output: Output) -> int:
    """Print the verdict as one line; return the exit status that monitoring systems expect.

    `request` may raise: whatever goes wrong in the check itself is UNKNOWN.
    """
    try:
        findings, numbers = _look(request())
    except Exception as error:  # noqa: BLE001  # a traceback would exit with 1, which is WARNING
        internal = f"internal error of Twinbus: {type(error).__name__}: {error}"
        text = str(error) if isinstance(error, TwinbusError) else internal
        findings, numbers = [CheckFinding(CheckLevel.UNKNOWN, text)], []
    return print_verdict(findings, numbers, output)


def print_verdict(
    findings: Sequence[CheckFinding], numbers: Sequence[PerfFigure], output: Output = Output.TEXT
) -> int:
    level = worst(findings)
    document = {
        "state": level,
        "exit_status": level.exit_status,
        "findings": [asdict(finding) for finding in findings],
        "figures": {number.name: number.value for number in numbers},
    }
    show(output, document, [plugin_line(findings, numbers)])
    return level.exit_status


def _look(request: CheckRequest) -> tuple[list[CheckFinding], list[PerfFigure]]:
    thresholds = request.thresholds
    hosts, findings = _ask_hosts(request.pair)
    if not hosts and not findings and request.secondary is None:
        where = f"no pair and no syphon runs here (searched {socket_directories()})"
        findings.append(CheckFinding(CheckLevel.UNKNOWN, where))
    for host in hosts:
        findings += findings_of(host, thresholds.unprotected)
    backlog = known_backlog(hosts)
    if request.secondary is not None:
        labels = labels_of(request, hosts)
        try:
            backlog, more = asyncio.run(_counted(request, request.secondary, labels))
        except (TimeoutError, TwinbusError) as error:
            silent = f"{request.secondary.endpoint} did not answer within {request.timeout_s:g} s"
            text = silent if isinstance(error, TimeoutError) else str(error)
            backlog, more = BacklogFigures(), [CheckFinding(CheckLevel.UNKNOWN, text)]
        findings += more
    elif backlog.depth is None and thresholds.depth != NO_LIMITS and hosts:
        text = "the depth of the backlog is not known: give --secondary"
        findings.append(CheckFinding(CheckLevel.UNKNOWN, text))
    findings += backlog_findings(backlog, thresholds)
    return findings, figures(hosts, backlog, thresholds)


def labels_of(request: CheckRequest, hosts: Sequence[CheckedHost]) -> list[str]:
    """Return the labels whose backlog is counted; none: all of the secondary."""
    if request.label:
        return [request.label]
    own = [request.primary_label] if request.primary_label else []
    if own or hosts or request.pair is None:
        return list(dict.fromkeys([*(host.label for host in hosts), *own]))
    # The pair does not run: its name is its label, or LABEL.PID.
    label, _, pid = request.pair.rpartition(".")
    return [label if label and pid.isdecimal() else request.pair]


def _ask_hosts(name: str | None) -> tuple[list[CheckedHost], list[CheckFinding]]:
    """Return the hosts that answer, and what is wrong with the others."""
    running, silent = find()
    findings = [
        CheckFinding(CheckLevel.CRITICAL, f"{one.path.stem}: {one.why}")
        for one in silent
        # The label is all that a silent socket tells about its host.
        if name is None or one.path.stem.lower().startswith(name.lower())
    ]
    chosen = [host for host in running if name is None or host.is_called(name)]
    if name is not None and not chosen and not findings:
        findings.append(CheckFinding(CheckLevel.CRITICAL, f"no pair or syphon {name!r} runs here"))
    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        answers = list(pool.map(_status, chosen))
    hosts = [one for one in answers if isinstance(one, CheckedHost)]
    return hosts, findings + [one for one in answers if isinstance(one, CheckFinding)]


def _status(host: RunningHost) -> CheckedHost | CheckFinding:
    try:
        status = read_status(ask(host.path, "status"))
    except StatusUnreadable as error:
        return CheckFinding(CheckLevel.UNKNOWN, f"{host.process}: {error}")
    except ControlError as error:
        return CheckFinding(CheckLevel.CRITICAL, str(error))
    return CheckedHost(host.card.name, host.process, status, time.time())


async def _counted(
    request: CheckRequest, secondary: Namespace, labels: Collection[str]
) -> tuple[BacklogFigures, list[CheckFinding]]:
    """Return the backlog and the twins as the secondary counts them; ages where they have limits.

    The findings are what is left in twins, and what could not be counted.
    """
    # Imported late: the SDK takes half a second to load, and asking pairs needs none of it.
    from twinbus.client.twins import found_twins
    from twinbus.console.backlog.queue_contents import queue_contents, with_ages
    from twinbus.console.namespaces import administration
    from twinbus.namespace.access import endpoint_of
    from twinbus.syphon.core.twin_book import contents_of

    # The line says what went wrong; the SDK would log it as well.
    logging.getLogger().addHandler(logging.NullHandler())
    found: list[CheckFinding] = []
    twins: dict[str, TwinContents] = {}
    async with asyncio.timeout(request.timeout_s):
        async with administration(secondary, "counting the backlog") as client:
            queues = await queue_contents(client)
        if labels:
            queues = [one for one in queues if any(one.is_of(label) for label in labels)]
        age_s: float | None = None
        if request.thresholds.age_s != NO_LIMITS:
            try:
                ages = [one.oldest_age_s for one in await with_ages(secondary, queues)]
                age_s = max((age for age in ages if age is not None), default=0.0)
            except MissingRightError as error:
                found.append(CheckFinding(CheckLevel.UNKNOWN, str(error)))
        for label in labels:
            listed = await found_twins(endpoint_of(secondary), label)
            twins |= {one.path: contents_of(one) for one in listed}
    if text := twins_text(twins):
        found.append(CheckFinding(CheckLevel.OK, text))
    held = sum(one.waiting or 0 for one in twins.values()) if twins else None
    depth = sum(queue.waiting for queue in queues)
    dead = sum(queue.dead_lettered for queue in queues)
    return BacklogFigures(depth, age_s, dead, held), found


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
    twins: int | None = None
    """Messages in twins."""


@dataclass(frozen=True, slots=True)
class CheckedHost:
    label: str
    process: str
    status: HostStatus
    at: float = 0.0
    """When it answered, in unix seconds."""


def findings_of(host: CheckedHost, unprotected: CheckLevel) -> list[CheckFinding]:
    """Return the state of one pair with its syphon, or of one syphon."""
    parts: dict[str, HostStatus] = {}
    if isinstance(host.status, PairStatus):
        parts[host.process] = host.status
    if host.status.own_syphon is not None:
        parts[f"syphon of {host.process}"] = host.status.own_syphon
    found = [_finding(who, status, host.at, unprotected) for who, status in parts.items()]
    if text := twins_text(host.status.twins):
        found.append(CheckFinding(CheckLevel.OK, f"{host.process}: {text}"))
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
    return [finding for finding, _ in _known_figures(backlog, thresholds)]


def _known_figures(
    backlog: BacklogFigures, thresholds: Thresholds
) -> list[tuple[CheckFinding, PerfFigure]]:
    depth, age_s, dead = backlog.depth, backlog.age_s, backlog.dead_letters
    age = f"oldest message in the backlog: {duration(age_s or 0)}"
    rows = (
        ("backlog", depth, "", thresholds.depth, f"backlog: {counted(depth or 0, 'message')}"),
        ("backlog_age", age_s, "s", thresholds.age_s, age),
        ("dead_letters", dead, "", thresholds.dead_letters, counted(dead or 0, "dead letter")),
    )
    return [
        (CheckFinding(limits.level(value), text), PerfFigure(name, round(value, 3), unit, limits))
        for name, value, unit, limits, text in rows
        if value is not None
    ]


def figures(
    hosts: Sequence[CheckedHost], backlog: BacklogFigures, thresholds: Thresholds
) -> list[PerfFigure]:
    """Return the numbers for graphs; those that are not known are left out."""
    pairs = [(one.status, one.at) for one in hosts if isinstance(one.status, PairStatus)]
    entities = [one for status, _ in pairs for one in status.entities.values()]
    exposed = sum(bool(judgement_of(status, at).exposed) for status, at in pairs)
    return [
        PerfFigure("pairs", len(pairs)),
        PerfFigure("unprotected", exposed),
        PerfFigure("failed_over", sum(one.state is EntityState.FAILED_OVER for one in entities)),
        PerfFigure("raising", sum(bool(one.raising) for one in entities)),
        *(
            PerfFigure(name, sum(getattr(one, name) for one in entities), "c")
            for name in ("sent", "diverted", "raised")
        ),
        *(figure for _, figure in _known_figures(backlog, thresholds)),
        *_twin_figures(hosts, backlog.twins),
    ]


def _twin_figures(hosts: Sequence[CheckedHost], counted: int | None) -> list[PerfFigure]:
    """Return what twins hold: as counted, else as the processes of each pair know."""
    if counted is not None:
        return [PerfFigure("twins", counted)]
    held: dict[str, int] = {}
    for host in hosts:
        known = [
            one.waiting
            for one in host.status.twins.values()
            if one.waiting is not None and is_fresh(one)
        ]
        if known:
            # The processes of one pair count the same twins.
            held[host.label] = max(sum(known), held.get(host.label, 0))
    return [PerfFigure("twins", sum(held.values()))] if held else []


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
