"""Checks of the doctor: rights, backlog queues and limits; and what its findings look like.

The checks attach and detach links. They send, receive, lock and change nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final
from uuid import uuid4

from azure.core.exceptions import AzureError, ResourceNotFoundError
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from twinbus.console.backlog.queue_contents import QueueContents, queue_contents
from twinbus.console.namespaces import UnreachableError, administration, explained
from twinbus.console.output import paint
from twinbus.errors import CredentialError, MissingRightError, TwinbusError
from twinbus.namespace.namespace import Namespace
from twinbus.namespace.tokens import is_signing
from twinbus.pairing.sdk.administration import first_line
from twinbus.pairing.sdk.pooled_sender import message_limit_bytes
from twinbus.servicebus.failures import FailureMeaning, of_error
from twinbus.servicebus.names import backlog_paths, parse_backlog_path
from twinbus.wording import counted, size, visible

CHECK_WIDTH = 22


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, with something to know or to repair."""
    FAIL = "fail"
    """A pair would not work, or not as guaranteed."""
    SKIP = "skip"
    """The credentials do not allow the check."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    says: str
    do: str = ""
    """What to do about it; empty: nothing."""


@dataclass(slots=True)
class ExaminedPair:
    """The two namespaces, and what the doctor knows of them so far."""

    primary: Namespace
    secondary: Namespace
    count: int
    entity: str | None
    """An entity of the primary that the application sends to; None: the doctor creates one."""
    twins: tuple[str, ...] = ()
    """Names and patterns of the entities that have a twin."""
    unsound: set[str] = field(default_factory=set)
    """Roles that do not answer or refuse the credential; the other one is examined further."""
    manages: dict[str, bool] = field(default_factory=dict)
    """By role: whether the credential may create and delete entities."""
    probes: dict[str, str] = field(default_factory=dict)
    """By role: the path of an entity that links may be attached to."""
    sizes: dict[str, int] = field(default_factory=dict)
    """By role: the maximum message size of the link."""
    refused_send: dict[str, bool] = field(default_factory=dict)
    """By role: whether the namespace refused the credential's send."""
    queues: list[QueueContents] | None = None
    """The backlog queues of the primary's label; None: not known."""

    @property
    def roles(self) -> dict[str, Namespace]:
        return {"primary": self.primary, "secondary": self.secondary}

    @property
    def sound(self) -> dict[str, Namespace]:
        return {role: one for role, one in self.roles.items() if role not in self.unsound}

    @property
    def backlog_paths(self) -> tuple[str, ...]:
        return backlog_paths(self.primary.label, self.count)


def refused(check: str, error: BaseException, level: Level = Level.FAIL) -> Finding:
    return Finding(check, level, str(error) or type(error).__name__)


def line_of(finding: Finding) -> str:
    style = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}[finding.level]
    level = paint(f"{finding.level:<4}", style)
    do = f"; {visible(finding.do)}" if finding.do else ""
    return f"{level}  {finding.check:<{CHECK_WIDTH}}  {visible(finding.says)}{do}"


def verdict(findings: Sequence[Finding], fit: str = "fit to be paired") -> str:
    count = {level: sum(1 for f in findings if f.level is level) for level in Level}
    failed, warned, skipped = count[Level.FAIL], count[Level.WARN], count[Level.SKIP]
    counts = [f"{failed} failed"] if failed else []
    counts += [counted(warned, "warning")] if warned else []
    counts += [f"{skipped} not checked"] if skipped else []
    head = fit if not skipped else "no problem was found"
    head = f"not {fit}" if failed else head
    return f"{head}: {', '.join(counts)}" if counts else f"{head}: every check passed"


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "ok": all(finding.level is not Level.FAIL for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }


ATTEMPT_S: Final = 10.0

FULL_SHARE: Final = 0.8
"""A backlog queue fuller than this has little room for the next outage."""


async def check_credential(pair: ExaminedPair, role: str) -> Finding:
    """Check that a side accepts the credential, whatever its rights."""
    check, namespace = f"credential {role}", pair.roles[role]
    try:
        # No entity has this name: any answer about it means that the credential was accepted.
        async with (
            namespace.bounded_client(ATTEMPT_S) as client,
            client.get_queue_sender(f"twinbus-doctor-{uuid4().hex}") as sender,
        ):
            await sender.create_message_batch()
    except ServiceBusAuthenticationError as error:
        if of_error(error) is FailureMeaning.NOT_FOUND:
            return Finding(check, Level.OK, "accepted")
        fetching = namespace.token_credential
        if fetching is not None and namespace.signature is None and not is_signing(fetching):
            text, do = "refused: the token", "check the identity and that its token is not expired"
            return Finding(check, Level.FAIL, text, do)
        text = "refused: wrong key, wrong key name, or expired signature"
        return Finding(check, Level.FAIL, text, "copy the connection string again")
    except ServiceBusAuthorizationError:
        pair.refused_send[role] = True
    except MessagingEntityNotFoundError:
        pass
    except (ServiceBusError, AzureError, CredentialError, OSError) as error:
        # With a custom endpoint the SDK takes a refused token for a lost connection.
        if of_error(error) is not FailureMeaning.NOT_FOUND:
            text = first_line(error) or f"no answer within {ATTEMPT_S:g} s"
            return Finding(check, Level.FAIL, text)
    return Finding(check, Level.OK, "accepted")


async def check_rights(pair: ExaminedPair) -> list[Finding]:
    """Check the Send and Listen rights, and say what the missing ones are for."""
    nothing_sent = "nothing can be sent: grant Send on the entities"
    nothing_diverted = "nothing can be diverted: grant Send on the backlog queues"
    # Concurrently, because the SDK takes a second to close a link.
    checks: list[Awaitable[Finding]] = []
    if "primary" in pair.sound:
        checks.append(_send(pair, "primary", nothing_sent))
    if "secondary" in pair.sound:
        checks += [_send(pair, "secondary", nothing_diverted), _listen(pair)]
    return list(await asyncio.gather(*checks))


async def check_manage(pair: ExaminedPair, role: str) -> Finding:
    """Check the Manage right; with it, list the backlog queues."""
    check, namespace = f"right Manage {role}", pair.roles[role]
    pair.manages[role] = False
    path = pair.backlog_paths[0]
    try:
        async with asyncio.timeout(ATTEMPT_S), administration(namespace, "managing") as client:
            with contextlib.suppress(ResourceNotFoundError):
                await client.get_queue_runtime_properties(path)
            if role == "secondary":
                label = pair.primary.label
                pair.queues = [one for one in await queue_contents(client) if one.is_of(label)]
    except MissingRightError:
        if role == "primary":
            text = "none, and a pair needs none"
            return Finding(check, Level.OK, text, "what needs scratch entities is not checked")
        text = "missing: pairing cannot create backlog queues, and a drain cannot count messages"
        do = "have an administrator run `twinbus backlog create`, pair with"
        return Finding(check, Level.WARN, text, f"{do} create_backlog_queues=False")
    except (TwinbusError, TimeoutError) as error:
        return refused(check, error)
    pair.manages[role] = True
    needs = "for scratch entities of this check" if role == "primary" else "for backlog queues"
    return Finding(check, Level.OK, f"there, {needs}")


async def _send(pair: ExaminedPair, role: str, missing: str) -> Finding:
    check, namespace = f"right Send {role}", pair.roles[role]
    path = pair.probes.get(role)
    if path is None:
        if pair.refused_send.get(role):
            return Finding(check, Level.FAIL, "missing on the namespace", missing)
        text = "no entity to check: give one that the application sends to with --entity"
        return Finding(check, Level.SKIP, text)

    def keep_size(limit_bytes: int) -> None:
        pair.sizes[role] = limit_bytes

    return await right_on(check, namespace, "Send", path, Level.FAIL, missing, keep_size)


async def _listen(pair: ExaminedPair) -> Finding:
    check, path = "right Listen secondary", pair.probes.get("secondary")
    if path is None:
        return Finding(check, Level.SKIP, "no backlog queue to check")
    missing = "the syphon cannot drain with this credential: grant Listen where it runs"
    return await right_on(check, pair.secondary, "Listen", path, Level.WARN, missing)


async def right_on(
    check: str,
    namespace: Namespace,
    right: str,
    path: str,
    level: Level,
    missing: str,
    keep_size: Callable[[int], None] = lambda _: None,
) -> Finding:
    """Attach to an entity and say whether the credential has the right to, Send or Listen."""
    try:
        with explained(namespace, f"attaching to {path}", right):
            async with namespace.bounded_client(ATTEMPT_S) as client:
                if right == "Listen":
                    async with client.get_queue_receiver(path) as receiver:
                        await receiver.peek_messages(1)
                else:
                    async with client.get_queue_sender(path) as sender:
                        await sender.create_message_batch()
                        keep_size(message_limit_bytes(sender) or 0)
    except MissingRightError:
        return Finding(check, level, f"missing on {path}", missing)
    except UnreachableError as error:
        if error.__cause__ and of_error(error.__cause__) is FailureMeaning.NOT_FOUND:
            is_backlog = parse_backlog_path(path) is not None
            do = "have an administrator run `twinbus backlog create`" if is_backlog else "create it"
            return Finding(check, Level.FAIL, f"{path} is not there", do)
        return refused(check, error)
    return Finding(check, Level.OK, f"there, on {path}")


async def check_queues(pair: ExaminedPair) -> list[Finding]:
    """Check which backlog queues exist, their drift, and how full they are."""
    if pair.queues is None:
        text = "not checked: this needs the Manage right on the secondary"
        return [Finding("backlog queues", Level.SKIP, text)]
    used = [queue for queue in pair.queues if queue.index < pair.count]
    extra = [queue for queue in pair.queues if queue.index >= pair.count]
    missing = pair.count - len(used)
    will = f"; {missing} will be created" if missing else ""
    found = [Finding("backlog queues", Level.OK, f"{len(used)} of {pair.count} are there{will}")]
    unsafe = [queue for queue in used if any(drift.unsafe for drift in queue.drift)]
    for queue in used:
        for drift in queue.drift:
            level = Level.WARN
            do = "it is kept out of use unless accept_drift" if drift.unsafe else "it can be used"
            if drift.unsafe and len(unsafe) == pair.count:
                level, do = Level.FAIL, "no backlog queue can be used: repair one, or accept_drift"
            found.append(Finding("drift", level, f"{queue.path}: {drift}", do))
        room = queue.max_size_mb * 1_024 * 1_024
        if room and queue.size_bytes > FULL_SHARE * room:
            text = f"{queue.path} holds {size(queue.size_bytes)} of {size(room)}"
            found.append(Finding("backlog size", Level.WARN, text, "drain it"))
    if not any(finding.check == "drift" for finding in found):
        found.append(Finding("drift", Level.OK, "none"))
    stranded = [queue.path for queue in extra if queue.waiting]
    if stranded:
        text = f"{', '.join(stranded)} hold messages and have an index past the count"
        found.append(Finding("extra queues", Level.WARN, text, "run a syphon, which drains them"))
    return found


async def check_limits(pair: ExaminedPair) -> list[Finding]:
    """Check that a backlog queue takes messages as large as the primary does."""
    sizes = pair.sizes
    if len(sizes) < len(pair.roles) or not all(sizes.values()):
        return [Finding("message size", Level.SKIP, "not checked: no link on each side to ask")]
    text = f"primary {size(sizes['primary'])}, secondary {size(sizes['secondary'])}"
    if sizes["secondary"] < sizes["primary"]:
        do = f"messages past {size(sizes['secondary'])} cannot be diverted: see strict_guards"
        return [Finding("message size", Level.WARN, text, do)]
    return [Finding("message size", Level.OK, text)]
