"""`twinbus doctor`: whether two namespaces are fit to be paired, one line for each question."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from twinbus.console.doctor.connectivity import check_clock, check_reach, check_sides
from twinbus.console.doctor.examined_pair import ExaminedPair
from twinbus.console.doctor.findings import Finding, Level, document, line_of, verdict
from twinbus.console.doctor.rights import (
    check_credentials,
    check_limits,
    check_queues,
    check_rights,
    learn_manage,
)
from twinbus.console.doctor.scratch_entities import Scratch
from twinbus.console.doctor.trials import make_probes, try_ping, try_round_trip
from twinbus.console.namespaces import run_to_its_end
from twinbus.console.terminal.live_line import LiveLine, live_line
from twinbus.console.terminal.output import COULD_NOT, print_json
from twinbus.namespace.namespace import Namespace

__all__ = ["run"]


def run(
    primary: Namespace, secondary: Namespace, *, count: int, entity: str | None, as_json: bool
) -> int:
    """Examine both namespaces and print what is found; the exit status."""
    patient = ExaminedPair(primary, secondary, count, entity)

    async def work() -> int:
        with live_line() as line:
            findings = await _examine(patient, line, is_told=not as_json)
        if as_json:
            print_json(document(findings))
        else:
            print(f"\n{verdict(findings)}")
        return COULD_NOT if any(f.level is Level.FAIL for f in findings) else 0

    return run_to_its_end(work)


async def _trials(patient: ExaminedPair, scratch: Scratch) -> list[Finding]:
    found = await asyncio.gather(try_ping(patient, scratch), try_round_trip(patient, scratch))
    return [finding for findings in found for finding in findings]


async def _examine(patient: ExaminedPair, line: LiveLine, *, is_told: bool) -> list[Finding]:
    findings: list[Finding] = []

    def take(found: list[Finding]) -> None:
        findings.extend(found)
        if is_told:
            for finding in found:
                line.print(line_of(finding))

    async def ask(what: str, question: Callable[[], Awaitable[list[Finding]]]) -> None:
        line.say(what)
        take(await question())

    await ask("comparing the sides", lambda: check_sides(patient))
    await ask("connecting", lambda: check_reach(patient))
    if findings[0].level is Level.FAIL or not all(patient.reached.values()):
        return findings
    await ask("comparing clocks", lambda: check_clock(patient))
    await ask("signing in", lambda: check_credentials(patient))
    if any(finding.level is Level.FAIL for finding in findings):
        return findings
    scratch = Scratch()
    try:
        async with scratch:
            await ask("asking for rights", lambda: learn_manage(patient))
            await ask("creating scratch entities", lambda: make_probes(patient, scratch))
            await ask("asking for rights", lambda: check_rights(patient))
            await ask("looking at backlog queues", lambda: check_queues(patient))
            await ask("comparing limits", lambda: check_limits(patient))
            await ask("sending scratch messages", lambda: _trials(patient, scratch))
            line.say("deleting scratch entities")
    finally:
        take(
            [
                Finding("scratch", Level.WARN, f"left behind: {what}", "it goes by itself in 5 min")
                for what in scratch.left_behind
            ]
        )
    return findings
