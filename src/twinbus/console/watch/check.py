"""`twinbus check`: asks the pairs of this machine, and the secondary if it is given, once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Final

from twinbus.console.terminal.output import Output, show
from twinbus.console.watch.verdict import (
    NO_LIMITS,
    BacklogFigures,
    CheckedHost,
    CheckFinding,
    CheckLevel,
    PerfFigure,
    Thresholds,
    backlog_findings,
    figures,
    findings_of,
    known_backlog,
    plugin_line,
    worst,
)
from twinbus.control.sockets import RunningHost, ask, find, socket_directories
from twinbus.errors import ControlError, MissingRightError, TwinbusError
from twinbus.namespace.namespace import Namespace
from twinbus.status.document import StatusUnreadable, read_status

CONCURRENT_REQUESTS: Final = 16


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """The checked options of `twinbus check`."""

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
    except TwinbusError as error:
        findings, numbers = [CheckFinding(CheckLevel.UNKNOWN, str(error))], []
    except Exception as error:  # noqa: BLE001  # a traceback would exit with 1, which is WARNING
        text = f"internal error of Twinbus: {type(error).__name__}: {error}"
        findings, numbers = [CheckFinding(CheckLevel.UNKNOWN, text)], []
    return print_verdict(findings, numbers, output)


def print_verdict(
    findings: Sequence[CheckFinding], numbers: Sequence[PerfFigure], output: Output = Output.TEXT
) -> int:
    """Print the line or the document; return the exit status."""
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
            backlog, unknown = asyncio.run(_counted(request, request.secondary, labels))
        except TimeoutError:
            text = f"{request.secondary.endpoint} did not answer within {request.timeout_s:g} s"
            backlog, unknown = BacklogFigures(), [CheckFinding(CheckLevel.UNKNOWN, text)]
        except TwinbusError as error:
            backlog, unknown = BacklogFigures(), [CheckFinding(CheckLevel.UNKNOWN, str(error))]
        findings += unknown
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
    """Return the backlog as the secondary counts it; the age only where it has a limit."""
    # Imported late: the SDK takes half a second to load, and asking pairs needs none of it.
    from twinbus.console.backlog.queue_contents import queue_contents, with_ages
    from twinbus.console.namespaces import administration

    # The line says what went wrong; the SDK would log it as well.
    logging.getLogger().addHandler(logging.NullHandler())
    unknown = []
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
                unknown.append(CheckFinding(CheckLevel.UNKNOWN, str(error)))
    depth = sum(queue.waiting for queue in queues)
    return BacklogFigures(depth, age_s, sum(queue.dead_lettered for queue in queues)), unknown
