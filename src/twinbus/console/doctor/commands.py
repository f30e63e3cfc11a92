"""`twinbus doctor`: checks whether two namespaces are fit to be paired.

Its trials on scratch entities, a hidden ping and a message through the backlog, use the code of a
pair: its ping, its backlog form, its relay.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from azure.servicebus import ServiceBusMessage

from twinbus.console import COULD_NOT
from twinbus.console.declaration import runs_to_its_end
from twinbus.console.doctor.board import check_board
from twinbus.console.doctor.connectivity import check_clock, check_gateway, check_sides, reach
from twinbus.console.doctor.rights import (
    ExaminedPair,
    Finding,
    Level,
    check_credential,
    check_limits,
    check_manage,
    check_queues,
    check_rights,
    document,
    line_of,
    refused,
    verdict,
)
from twinbus.console.doctor.twins import check_twins
from twinbus.console.namespaces import explained
from twinbus.console.output import LiveLine, Output, show
from twinbus.errors import MissingRightError, TwinbusError
from twinbus.namespace.namespace import Namespace
from twinbus.options import SendAvailabilityOptions
from twinbus.servicebus.names import backlog_paths
from twinbus.syphon.host import SyphonHost
from twinbus.transfer.sdk import to_backlog_message
from twinbus.verify.checks import ping
from twinbus.verify.scratch import ScratchNamespace


@runs_to_its_end
async def run(
    pair: ExaminedPair | None, gateway: Namespace | None, entity: str | None, output: Output
) -> int:
    """Examine a pair, a gateway or both; print the findings and return the exit status."""
    findings: list[Finding] = []
    with LiveLine() as line:

        def take(found: Iterable[Finding]) -> None:
            for finding in found:
                findings.append(finding)
                if output is Output.TEXT:
                    line.print(line_of(finding))

        if pair is not None:
            await _examine(pair, line, take)
        if gateway is not None:
            line.say("asking the gateway")
            async for finding in check_gateway(gateway, entity):
                take([finding])
    fit = "fit to be sent through" if pair is None else "fit to be paired"
    show(output, document(findings), ["", verdict(findings, fit)])
    return COULD_NOT if any(f.level is Level.FAIL for f in findings) else 0


async def _examine(
    pair: ExaminedPair, line: LiveLine, take: Callable[[Iterable[Finding]], None]
) -> None:
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

    line.say("comparing the sides")
    sides = await check_sides(pair)
    take(sides)
    if sides[0].level is Level.FAIL:
        return
    pair.unsound |= await ask_sides("connecting", lambda pair, role: reach(role, pair.roles[role]))
    pair.unsound |= await ask_sides("comparing clocks", check_clock)
    pair.unsound |= await ask_sides("signing in", check_credential)
    if not pair.sound or any(finding.level is Level.FAIL for finding in sides):
        return
    scratch = {role: scratch_of(namespace) for role, namespace in pair.roles.items()}
    try:
        async with scratch["primary"], scratch["secondary"]:
            await ask_sides("checking rights", check_manage)
            await ask("creating scratch entities", make_probes(pair, scratch))
            await ask("checking rights", check_rights(pair))
            if "secondary" in pair.sound:
                await ask("checking backlog queues", check_queues(pair))
                await ask("checking the notice board", check_board(pair))
            if pair.unsound:
                (role,) = pair.unsound
                text = f"twins, message size, ping, there and back: they need the {role} too"
                do = "run the doctor again when it answers"
                take([Finding("not checked", Level.SKIP, text, do)])
            else:
                await ask("checking twins", check_twins(pair))
                await ask("comparing limits", check_limits(pair))
                line.say("sending scratch messages")
                trials = try_ping(pair, scratch), try_round_trip(pair, scratch)
                for found in await asyncio.gather(*trials):
                    take(found)
            line.say("deleting scratch entities")
    finally:
        do = "it goes by itself in 5 min"
        left = [what for side in scratch.values() for what in side.left_behind]
        take(Finding("scratch", Level.WARN, f"left behind: {what}", do) for what in left)


ARRIVE_S: Final = 10.0
CREATING: Final = "creating scratch entities"

IDLE: Final = timedelta(minutes=5)
"""The minimum of Service Bus: it deletes what a killed doctor left behind."""

MOVE_S: Final = 30.0
"""A message moves in a fraction of a second; the rest is for distant and busy namespaces."""

SCHEDULED_S: Final = 2.0
BODY: Final = b"\x00twinbus doctor\xff"
TIME_TO_LIVE: Final = timedelta(hours=1)

Scratch = Mapping[str, ScratchNamespace]
"""The scratch entities of each side, by its role."""


def scratch_of(namespace: Namespace) -> ScratchNamespace:
    """Scratch entities of the doctor, which are deleted again whatever happens."""
    return ScratchNamespace(namespace, "twinbus-doctor-", idle=IDLE)


async def make_probes(pair: ExaminedPair, scratch: Scratch) -> list[Finding]:
    """Choose or create an entity on each side to attach links to."""
    if pair.entity is not None:
        pair.probes["primary"] = pair.entity
    queues = pair.queues
    if queues is None:
        pair.probes["secondary"] = pair.backlog_paths[0]
    elif queues:
        pair.probes["secondary"] = queues[0].path
    found = []
    for role, namespace in pair.sound.items():
        if role not in pair.probes and pair.manages.get(role):
            try:
                with explained(namespace, CREATING, "Manage"):
                    pair.probes[role] = await scratch[role].queue("probe")
            except TwinbusError as error:
                found.append(refused(f"scratch {role}", error))
    return found


async def try_ping(pair: ExaminedPair, scratch: Scratch) -> list[Finding]:
    """Check that no receiver, count or dead-letter queue sees a ping."""
    check, primary = "ping", pair.primary
    if not pair.manages.get("primary"):
        text = "not checked: scratch entities need the Manage right on the primary"
        return [Finding(check, Level.SKIP, text, 'if in doubt, pair with ping_mode="link"')]
    try:
        with explained(primary, "pinging scratch entities", "Manage, Send and Listen"):
            observed = await ping(scratch["primary"])
    except MissingRightError as error:
        return [refused(check, error, Level.SKIP)]
    except (TwinbusError, TimeoutError) as error:
        return [refused(check, error)]
    if seen := [place for place, count in observed.items() if count]:
        text = f"a ping was seen by {', '.join(seen)}"
        return [Finding(check, Level.WARN, text, 'pair with ping_mode="link"')]
    text = "acknowledged, and seen by no receiver, peek, subscription, count or dead-letter queue"
    return [Finding(check, Level.OK, text)]


async def try_round_trip(pair: ExaminedPair, scratch: Scratch) -> list[Finding]:
    """Check that a message in backlog form is restored unchanged."""
    check = "there and back"
    lacking = [role for role in pair.roles if not pair.manages.get(role)]
    if lacking:
        text = f"not checked: scratch entities need the Manage right on the {' and '.join(lacking)}"
        return [Finding(check, Level.SKIP, text)]
    primary, secondary = pair.primary, pair.secondary
    message = _sample()
    try:
        with explained(primary, CREATING, "Manage"):
            home = await scratch["primary"].queue("home", requires_session=True)
        with explained(secondary, CREATING, "Manage"):
            backlog = await scratch["secondary"].queue(backlog_paths("home", 1)[0])
        with explained(secondary, "diverting", "Send"):
            async with scratch["secondary"].link("sender", backlog) as sender:
                now_ms = time.time_ns() // 1_000_000
                await sender.send_messages(to_backlog_message(message, home, now_ms=now_ms))
        began = asyncio.get_running_loop().time()
        stuck = await _moved(pair, backlog)
        if stuck:
            return [Finding(check, Level.FAIL, stuck, "the syphon would not drain either")]
        took_s = asyncio.get_running_loop().time() - began
        with explained(primary, "receiving", "Listen"):
            different = await _compare(scratch["primary"], home, message)
    except MissingRightError as error:
        return [refused(check, error, Level.SKIP)]
    except (TwinbusError, TypeError, TimeoutError) as error:
        return [refused(check, error)]
    if different:
        return [Finding(check, Level.FAIL, f"it came back with a different {', '.join(different)}")]
    text = f"a message with session, time to live and schedule came back as it was, {took_s:.1f} s"
    return [Finding(check, Level.OK, text)]


def _sample() -> ServiceBusMessage:
    return ServiceBusMessage(
        BODY,
        message_id=str(uuid4()),
        session_id=f"session {uuid4()}",
        subject="twinbus doctor",
        correlation_id="there and back",
        content_type="application/octet-stream",
        time_to_live=TIME_TO_LIVE,
        # To the millisecond, as a message carries it.
        scheduled_enqueue_time_utc=_rounded(datetime.now(UTC) + timedelta(seconds=SCHEDULED_S)),
        application_properties={"number": 7, "text": "äöü", "flag": True},
    )


async def _moved(pair: ExaminedPair, backlog: str) -> str | None:
    """Let the relay move the message; return what prevented it, or None."""
    options = SendAvailabilityOptions(syphon_poll=10.0)
    host = SyphonHost(pair.primary, pair.secondary, [backlog], options)
    relay = host.relays[0]
    await host.start()
    try:
        async with asyncio.timeout(MOVE_S):
            while not (relay.pump.completed or relay.pump.dead_lettered):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        problems = [*relay.problems.values(), *map(str, relay.pump.held.values())]
        return f"not moved within {MOVE_S:g} s: {'; '.join(problems) or 'no reason given'}"
    finally:
        await host.close()
    return "the syphon dead-lettered it" if relay.pump.dead_lettered else None


async def _compare(primary: ScratchNamespace, home: str, sent: ServiceBusMessage) -> list[str]:
    """Receive the message and return the names of what differs."""
    async with primary.link("receiver", home, session_id=sent.session_id) as receiver:
        got = await receiver.receive_messages(1, max_wait_time=SCHEDULED_S + ARRIVE_S)
        if not got:
            return ["place: nothing arrived"]
        await receiver.complete_message(got[0])
    plain = ("message_id", "session_id", "subject", "correlation_id", "content_type")
    different = [name for name in plain if getattr(got[0], name) != getattr(sent, name)]
    different += ["body"] if b"".join(got[0].body) != BODY else []
    different += ["time_to_live"] if got[0].time_to_live != TIME_TO_LIVE else []
    if _rounded(got[0].scheduled_enqueue_time_utc) != sent.scheduled_enqueue_time_utc:
        different.append("scheduled_enqueue_time_utc")
    if _texts(got[0].application_properties) != _texts(sent.application_properties):
        different.append("application_properties")
    return different


def _rounded(moment: datetime | None) -> datetime | None:
    if moment is None:
        return None
    return moment.replace(microsecond=moment.microsecond // 1_000 * 1_000)


def _texts(properties: Any) -> dict[str, object]:
    def text(value: object) -> object:
        return value.decode() if isinstance(value, bytes) else value

    return {str(text(name)): text(value) for name, value in (properties or {}).items()}
