"""`twinbus doctor`: checks whether two namespaces are fit to be paired."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from twinbus.console import COULD_NOT
from twinbus.console.doctor.connectivity import (
    check_clock,
    check_gateway,
    check_reach,
    check_sides,
)
from twinbus.console.doctor.findings import ExaminedPair, Finding, Level, document, line_of, verdict
from twinbus.console.doctor.rights import (
    check_credential,
    check_limits,
    check_manage,
    check_queues,
    check_rights,
)
from twinbus.console.doctor.trials import (
    Scratch,
    make_probes,
    scratch_of,
    try_ping,
    try_round_trip,
)
from twinbus.console.terminal.command import runs_to_its_end
from twinbus.console.terminal.output import LiveLine, Output, show
from twinbus.namespace.namespace import Namespace


@runs_to_its_end
async def run(
    primary: Namespace,
    secondary: Namespace,
    count: int,
    entity: str | None,
    output: Output,
    gateway: Namespace | None = None,
) -> int:
    """Examine both namespaces, and a gateway; print the findings and return the exit status."""
    pair = ExaminedPair(primary, secondary, count, entity)
    with LiveLine() as line:
        findings = await _examine(pair, line, is_printed=output is Output.TEXT)
        if gateway is not None:
            findings += await _examine_gateway(gateway, entity, line, output)
    return _concluded(findings, output)


@runs_to_its_end
async def run_gateway(gateway: Namespace, entity: str | None, output: Output) -> int:
    """Examine a gateway alone; print the findings and return the exit status."""
    with LiveLine() as line:
        findings = await _examine_gateway(gateway, entity, line, output)
    return _concluded(findings, output, "fit to be sent through")


def _concluded(findings: list[Finding], output: Output, fit: str = "fit to be paired") -> int:
    show(output, document(findings), ["", verdict(findings, fit)])
    return COULD_NOT if any(f.level is Level.FAIL for f in findings) else 0


async def _examine_gateway(
    gateway: Namespace, entity: str | None, line: LiveLine, output: Output
) -> list[Finding]:
    findings = []
    line.say("asking the gateway")
    async for finding in check_gateway(gateway, entity):
        findings.append(finding)
        if output is Output.TEXT:
            line.print(line_of(finding))
    return findings


async def _trials(pair: ExaminedPair, scratch: Scratch) -> list[Finding]:
    found = await asyncio.gather(try_ping(pair, scratch), try_round_trip(pair, scratch))
    return [finding for findings in found for finding in findings]


def _not_tried(pair: ExaminedPair) -> Finding:
    (role,) = pair.unsound
    text = f"message size, ping, there and back: they need the {role} too"
    return Finding("not checked", Level.SKIP, text, "run the doctor again when it answers")


async def _examine(pair: ExaminedPair, line: LiveLine, *, is_printed: bool) -> list[Finding]:
    findings: list[Finding] = []

    def take(found: Iterable[Finding]) -> None:
        for finding in found:
            findings.append(finding)
            if is_printed:
                line.print(line_of(finding))

    async def ask_sides(
        what: str, check: Callable[[ExaminedPair, str], Awaitable[Finding]]
    ) -> set[str]:
        """Check each side that is sound so far; return those that fail."""
        line.say(what)
        found = await asyncio.gather(*(check(pair, role) for role in pair.sound))
        failed = {
            role
            for role, finding in zip(pair.sound, found, strict=True)
            if finding.level is Level.FAIL
        }
        take(found)
        return failed

    async def ask(what: str, question: Awaitable[list[Finding]]) -> None:
        line.say(what)
        take(await question)

    await ask("comparing the sides", check_sides(pair))
    is_named = all(finding.level is not Level.FAIL for finding in findings)
    if findings[0].level is Level.FAIL:
        return findings
    pair.unsound |= await ask_sides("connecting", check_reach)
    pair.unsound |= await ask_sides("comparing clocks", check_clock)
    pair.unsound |= await ask_sides("signing in", check_credential)
    if not pair.sound or not is_named:
        return findings
    scratch = {role: scratch_of(namespace) for role, namespace in pair.roles.items()}
    try:
        async with scratch["primary"], scratch["secondary"]:
            await ask_sides("checking rights", check_manage)
            await ask("creating scratch entities", make_probes(pair, scratch))
            await ask("checking rights", check_rights(pair))
            if "secondary" in pair.sound:
                await ask("checking backlog queues", check_queues(pair))
            if pair.unsound:
                take([_not_tried(pair)])
            else:
                await ask("comparing limits", check_limits(pair))
                await ask("sending scratch messages", _trials(pair, scratch))
            line.say("deleting scratch entities")
    finally:
        do = "it goes by itself in 5 min"
        left = [what for side in scratch.values() for what in side.left_behind]
        take(Finding("scratch", Level.WARN, f"left behind: {what}", do) for what in left)
    return findings
