"""Administration API: authenticates, authorizes and performs a request; answers after the commit.

Speaks what Azure's administration clients speak (Atom XML over HTTP), and JSON for `/$faults`. What
a request means is in `entities`; this shell knows the token, the disk and the status codes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from twinbus.broker.admin.atom import ERROR_CONTENT_TYPE, render_error
from twinbus.broker.admin.entities import (
    Address,
    Administration,
    Document,
    parse_address,
    parse_page,
)
from twinbus.broker.engine.limits import ADMINISTRATION_COST
from twinbus.broker.faults import fault_from_json, fault_to_json
from twinbus.broker.refusals import ArgumentInvalid, EntityNotFound, Refusal, Unauthorized
from twinbus.broker.sas import MANAGE, SEND, AccessPolicy, Grant
from twinbus.broker.server import BrokerServer
from twinbus.errors import StoreError
from twinbus.servicebus import conditions

_log = logging.getLogger(__name__)

CREATED = 201

SUPPLEMENTARY_HEADERS = (
    "servicebussupplementaryauthorization",
    "servicebusdlqsupplementaryauthorization",
)
"""Tokens for the destinations of forwarding, which the client's own token need not cover."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdminRequest:
    method: str
    raw_path: str
    """Still percent-encoded, without the query."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""


class ConflictingOperation(Refusal):
    condition, status = conditions.ENTITY_EXISTS, 409
    is_tracked = True


class MethodNotAllowed(Refusal):
    condition, status = conditions.NOT_ALLOWED, 405


Verified = Grant | Unauthorized
"""What the token of a request grants, or why it grants nothing. A token is verified once for each
request: strangers send them too."""


def verified(policy: AccessPolicy, request: AdminRequest, now_s: float) -> Verified:
    token = request.headers.get("authorization")
    if token is None:
        return Unauthorized(
            "MissingToken: The request has no Authorization header; sign it with a shared access"
            " key."
        )
    try:
        return policy.verify(token, now_s)
    except Unauthorized as refusal:
        return refusal


async def respond(broker: BrokerServer, request: AdminRequest, token: Verified) -> Document:
    try:
        address = parse_address(request.raw_path)
        grant = require_manage(token, f"{broker.name}/{address.path}", request)
        if broker.credits is not None:
            broker.credits.require(ADMINISTRATION_COST, broker.now_ms())
        if request.method == "GET":
            document = _perform(broker, request, address, grant)
        else:
            document = await _change(broker, request, address, grant)
    except Refusal as refusal:
        return _refused(broker, request, refusal)
    except StoreError as error:
        return _refused(broker, request, Refusal(f"the change was not stored: {error}"))
    return document


async def _change(
    broker: BrokerServer, request: AdminRequest, address: Address, grant: Grant
) -> Document:
    """Perform a change; answer when it is on disk and the time of a creation has passed."""
    path, creation_s = address.path.lower(), broker.profile.creation_s
    if path in broker.changing:
        raise ConflictingOperation(
            "SubCode=40901. Another conflicting operation is in progress. To know more visit"
            " https://aka.ms/sbResourceMgrExceptions."
        )
    rules = broker.entity_rules(address.path)
    document = _perform(broker, request, address, grant)
    if rules != broker.entity_rules(address.path):
        broker.recheck_grants()
    broker.wake()
    if document.status != CREATED or not creation_s:
        await broker.commit.durable()
        return document
    broker.changing.add(path)
    try:
        await broker.commit.durable()
        await asyncio.sleep(creation_s)
    finally:
        broker.changing.discard(path)
    return document


async def respond_faults(broker: BrokerServer, request: AdminRequest, token: Verified) -> Document:
    """Perform one request on the active faults: list, add, remove, clear."""
    try:
        require_manage(token, f"{broker.name}/", request)
        return _faults(broker, request)
    except Refusal as refusal:
        return _json(refusal.status, {"error": refusal.description})


def _perform(
    broker: BrokerServer, request: AdminRequest, address: Address, grant: Grant
) -> Document:
    administration = Administration(
        namespace=broker.namespace,
        authority=request.headers.get("host", "localhost"),
        now_ms=broker.now_ms(),
        may_forward_to=lambda path: require_send(
            broker.policy, broker.name, request, grant, path, broker.now_ms() / 1000
        ),
    )
    match request.method:
        case "GET":
            return administration.get(address, parse_page(request.query))
        case "PUT":
            update = "if-match" in request.headers
            return administration.put(address, request.body, update=update)
        case "DELETE":
            return administration.delete(address)
    raise MethodNotAllowed(f"{request.method} is not a method of the administration API")


def require_manage(token: Verified, resource: str, request: AdminRequest) -> Grant:
    """What the request's token grants; raises `Unauthorized` without the right to manage."""
    if isinstance(token, Unauthorized):
        raise token
    # The JavaScript SDK signs the address of the request itself, as in `$Resources/queues`.
    if not token.allows(unquote(request.raw_path), MANAGE):
        raise Unauthorized.lacking(
            MANAGE,
            f"sb://{resource}",
            f" The rule {token.rule_name!r} does not grant it.",
        )
    return token


def require_send(
    policy: AccessPolicy, name: str, request: AdminRequest, grant: Grant, path: str, now_s: float
) -> None:
    """Forwarding sends, so it needs the right to, from the client's token or one sent along."""
    if grant.allows(path, SEND):
        return
    for header in SUPPLEMENTARY_HEADERS:
        token = request.headers.get(header)
        if token is None:
            continue
        if policy.verify(token, now_s).allows(path, SEND):
            return
    raise Unauthorized.lacking(SEND, f"sb://{name}/{path}", " Forwarding needs it.")


def _refused(broker: BrokerServer, request: AdminRequest, refusal: Refusal) -> Document:
    broker.track(refusal)
    _log.info(
        "%s %s refused (%d): %s",
        request.method, request.raw_path, refusal.status, refusal.description,
    )  # fmt: skip
    body = render_error(refusal.status, refusal.description)
    return Document(refusal.status, body, ERROR_CONTENT_TYPE)


def _faults(broker: BrokerServer, request: AdminRequest) -> Document:
    plan, now_ms = broker.faults, broker.now_ms()
    fault_id = request.raw_path.removeprefix("/").partition("/")[2]
    match request.method, fault_id:
        case "GET", "":
            in_force = plan.list(now_ms).items()
            return _json(200, {"faults": [fault_to_json(*numbered) for numbered in in_force]})
        case "POST", "":
            fault = fault_from_json(_read_json(request.body), now_ms)
            new_id = plan.add(fault)
            _log.info("fault %d in force: %s", new_id, fault)
            return _json(201, fault_to_json(new_id, fault))
        case "DELETE", "":
            plan.clear()
            _log.info("all faults cleared")
            return _json(200, {"faults": []})
        case "DELETE", number if number.isascii() and number.isdigit() and plan.remove(int(number)):
            _log.info("fault %s removed", number)
            return _json(200, {"id": int(number)})
        case "DELETE", number:
            raise EntityNotFound(f"no fault {number!r} is in force; GET /$faults lists them")
    raise MethodNotAllowed(f"{request.method} is not a method of {request.raw_path}")


def _read_json(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError as error:
        raise ArgumentInvalid(f"the request body is not JSON: {error}") from None


def _json(status: int, document: object) -> Document:
    return Document(status, json.dumps(document).encode(), "application/json")
