"""The doctor's questions about rights, backlog queues and limits.

Nothing of the user's is sent, received, locked or changed: links are attached and let go.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

from azure.core.exceptions import AzureError, ResourceNotFoundError
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from twinbus.console.backlog.queue_contents import queue_contents
from twinbus.console.doctor.examined_pair import ExaminedPair, refused
from twinbus.console.doctor.findings import Finding, Level
from twinbus.console.namespaces import UnreachableError, administration, answers
from twinbus.console.terminal.table import size
from twinbus.errors import MissingRightError, TwinbusError
from twinbus.namespace.namespace import Namespace
from twinbus.pairing.core.backlog import parse_backlog_path
from twinbus.pairing.lifecycle.administration import first_line

__all__ = ["check_credentials", "check_limits", "check_queues", "check_rights", "learn_manage"]

ATTEMPT_S: Final = 10.0

FULL_SHARE: Final = 0.8
"""Of a backlog queue's size: fuller than this leaves little room for the next outage."""


async def check_credentials(patient: ExaminedPair) -> list[Finding]:
    """Whether both sides let the credentials in at all, whatever they may do there."""
    found = await asyncio.gather(*(_sign_in(patient, role) for role in patient.roles))
    return list(found)


async def _sign_in(patient: ExaminedPair, role: str) -> Finding:
    check, namespace = f"credential {role}", patient.roles[role]
    try:
        # Nothing is called so: any answer about the entity says that the credential was taken.
        async with (
            namespace.bounded_client(ATTEMPT_S) as client,
            client.get_queue_sender(f"twinbus-doctor-{uuid4().hex}") as sender,
        ):
            await sender.create_message_batch()
    except ServiceBusAuthenticationError:
        says = "refused: another key, another name of the key, or an expired signature is needed"
        return Finding(check, Level.FAIL, says, "copy the connection string anew")
    except ServiceBusAuthorizationError:
        patient.refused_send[role] = True
    except MessagingEntityNotFoundError:
        pass
    except (ServiceBusError, AzureError, OSError) as error:
        return Finding(check, Level.FAIL, first_line(error) or f"no answer within {ATTEMPT_S:g} s")
    return Finding(check, Level.OK, "taken")


async def learn_manage(patient: ExaminedPair) -> list[Finding]:
    """Whether the credentials may create entities, and with that what backlog queues there are."""
    return [await _manage(patient, role) for role in patient.roles]


async def check_rights(patient: ExaminedPair) -> list[Finding]:
    """Which rights to send and receive the credentials have, and what the missing ones are for."""
    nothing_sent = "nothing can be sent: grant Send on the entities"
    nothing_diverted = "nothing can be diverted: grant Send on the backlog queues"
    # At once, because the SDK takes a second to say goodbye.
    found = await asyncio.gather(
        _send(patient, "primary", nothing_sent),
        _send(patient, "secondary", nothing_diverted),
        _listen(patient),
    )
    return list(found)


async def _manage(patient: ExaminedPair, role: str) -> Finding:
    check, namespace = f"right Manage {role}", patient.roles[role]
    patient.manages[role] = False
    path = patient.backlog_paths[0]
    try:
        async with asyncio.timeout(ATTEMPT_S), administration(namespace, "managing") as client:
            with contextlib.suppress(ResourceNotFoundError):
                await client.get_queue_runtime_properties(path)
            if role == "secondary":
                label = patient.primary.label
                patient.stocks = [one for one in await queue_contents(client) if one.is_of(label)]
    except MissingRightError:
        if role == "primary":
            says = "none, and a pair needs none"
            return Finding(check, Level.OK, says, "what needs scratch entities is not checked")
        says = "missing: pairing cannot create backlog queues, a drain not count what is left"
        do = "have an administrator run `twinbus backlog create`, pair with"
        return Finding(check, Level.WARN, says, f"{do} create_backlog_queues=False")
    except (TwinbusError, TimeoutError) as error:
        return refused(check, error)
    patient.manages[role] = True
    needs = "for scratch entities of this check" if role == "primary" else "for backlog queues"
    return Finding(check, Level.OK, f"there, {needs}")


async def _send(patient: ExaminedPair, role: str, missing: str) -> Finding:
    check, namespace = f"right Send {role}", patient.roles[role]
    path = patient.probes.get(role)
    if path is None:
        if patient.refused_send.get(role):
            return Finding(check, Level.FAIL, "missing on the namespace", missing)
        says = "no entity to ask: name one that the application sends to with --entity"
        return Finding(check, Level.SKIP, says)

    async def ask(client: Any) -> None:
        async with client.get_queue_sender(path) as sender:
            await sender.create_message_batch()
            patient.sizes[role] = int(getattr(sender, "_max_message_size_on_link", 0) or 0)

    return await _right(check, namespace, "Send", path, ask, Level.FAIL, missing)


async def _listen(patient: ExaminedPair) -> Finding:
    check, path = "right Listen secondary", patient.probes.get("secondary")
    if path is None:
        return Finding(check, Level.SKIP, "no backlog queue to ask")

    async def ask(client: Any) -> None:
        async with client.get_queue_receiver(path) as receiver:
            await receiver.peek_messages(1)

    missing = "the syphon cannot drain with this credential: grant Listen where it runs"
    return await _right(check, patient.secondary, "Listen", path, ask, Level.WARN, missing)


async def _right(
    check: str,
    namespace: Namespace,
    right: str,
    path: str,
    ask: Callable[[Any], Awaitable[None]],
    level: Level,
    missing: str,
) -> Finding:
    try:
        with answers(namespace, f"attaching to {path}", right):
            async with namespace.bounded_client(ATTEMPT_S) as client:
                await ask(client)
    except MissingRightError:
        return Finding(check, level, f"missing on {path}", missing)
    except UnreachableError as error:
        if isinstance(error.__cause__, MessagingEntityNotFoundError):
            is_backlog = parse_backlog_path(path) is not None
            do = "have an administrator run `twinbus backlog create`" if is_backlog else "create it"
            return Finding(check, Level.FAIL, f"{path} is not there", do)
        return refused(check, error)
    return Finding(check, Level.OK, f"there, on {path}")


async def check_queues(patient: ExaminedPair) -> list[Finding]:
    """Which backlog queues are there, whether they can be used, and how full they are."""
    if patient.stocks is None:
        says = "not looked at: that needs the Manage right on the secondary"
        return [Finding("backlog queues", Level.SKIP, says)]
    used = [stock for stock in patient.stocks if stock.index < patient.count]
    extra = [stock for stock in patient.stocks if stock.index >= patient.count]
    missing = patient.count - len(used)
    will = f"; {missing} will be created" if missing else ""
    found = [Finding("backlog queues", Level.OK, f"{len(used)} of {patient.count} are there{will}")]
    unsafe = [stock for stock in used if any(drift.unsafe for drift in stock.drift)]
    for stock in used:
        for drift in stock.drift:
            level = Level.WARN
            do = "it is kept out of use unless accept_drift" if drift.unsafe else "it can be used"
            if drift.unsafe and len(unsafe) == patient.count:
                level, do = Level.FAIL, "no backlog queue can be used: mend it, or accept_drift"
            found.append(Finding("drift", level, f"{stock.path}: {drift}", do))
        room = stock.max_size_mb * 1_024 * 1_024
        if room and stock.size_bytes > FULL_SHARE * room:
            says = f"{stock.path} holds {size(stock.size_bytes)} of {size(room)}"
            found.append(Finding("backlog size", Level.WARN, says, "drain it"))
    if not any(finding.check == "drift" for finding in found):
        found.append(Finding("drift", Level.OK, "none"))
    stranded = [stock.path for stock in extra if stock.waiting]
    if stranded:
        says = f"{', '.join(stranded)} hold messages and have an index past the count"
        found.append(
            Finding("extra queues", Level.WARN, says, "no pair drains them: raise the count")
        )
    return found


async def check_limits(patient: ExaminedPair) -> list[Finding]:
    """Whether a backlog queue takes messages as large as the primary does."""
    sizes = patient.sizes
    if len(sizes) < len(patient.roles) or not all(sizes.values()):
        return [Finding("message size", Level.SKIP, "not told: no link to ask on each side")]
    says = f"primary {size(sizes['primary'])}, secondary {size(sizes['secondary'])}"
    if sizes["secondary"] < sizes["primary"]:
        do = f"messages past {size(sizes['secondary'])} cannot be diverted: see strict_guards"
        return [Finding("message size", Level.WARN, says, do)]
    return [Finding("message size", Level.OK, says)]
