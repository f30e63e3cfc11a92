"""Administration API: authenticates, authorizes and performs a request; answers after the commit.

Speaks what Azure's administration clients speak (Atom XML over HTTP), and JSON for `/$faults`. What
a request means is in `entities`; this shell knows the token, the disk and the status codes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote

from twinbus.broker.admin.atom import ERROR_CONTENT_TYPE, render_error
from twinbus.broker.admin.atom_entities import LATEST
from twinbus.broker.admin.entities import (
    Address,
    Administration,
    AdminNode,
    Document,
    parse_address,
    parse_page,
)
from twinbus.broker.engine.limits import ADMINISTRATION_COST
from twinbus.broker.faults import FaultPlan, fault_from_json, fault_to_json
from twinbus.broker.refusals import ArgumentInvalid, EntityNotFound, Refusal, Unauthorized
from twinbus.broker.sas import LISTEN, MANAGE, SEND, AccessPolicy, Grant
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
        if _is_missing(broker, request, address, token):
            assert isinstance(token, Grant)
            grant = token
        else:
            grant = require_manage(token, f"{broker.name}/{address.path}", request)
        if broker.credits is not None:
            broker.credits.require(ADMINISTRATION_COST, broker.now_ms())
        if request.method == "GET":
            reading = _administration(broker, request, grant).get(
                address, parse_page(request.query)
            )
            document = await broker.turns.done(reading)
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


class Steered(Protocol):
    """What has faults: a broker or a fault proxy."""

    name: str
    faults: FaultPlan

    def now_ms(self) -> int: ...


async def respond_faults(broker: Steered, request: AdminRequest, token: Verified) -> Document:
    """Perform one request on the active faults: list, add, remove, clear."""
    try:
        require_manage(token, f"{broker.name}/", request)
        return _faults(broker, request)
    except Refusal as refusal:
        return _json(refusal.status, {"error": refusal.description})


async def respond_clock(broker: BrokerServer, request: AdminRequest, token: Verified) -> Document:
    """Move the clock by `advance_ms` of a JSON object; answer how far it is ahead."""
    try:
        require_manage(token, f"{broker.name}/", request)
        if request.method != "POST":
            raise MethodNotAllowed(f"{request.method} is not a method of {request.raw_path}")
        document = _read_json(request.body)
        given = document if isinstance(document, dict) else {}
        by_ms = given.get("advance_ms")
        if len(given) != 1 or isinstance(by_ms, bool) or not isinstance(by_ms, int):
            raise ArgumentInvalid('the body is a JSON object such as {"advance_ms": 60000}')
        ahead_ms = broker.advance(by_ms)
        _log.info("the clock was moved by %d ms; it is %d ms ahead", by_ms, ahead_ms)
        await broker.commit.durable()
        return _json(200, {"ahead_ms": ahead_ms})
    except Refusal as refusal:
        return _json(refusal.status, {"error": refusal.description})


def _administration(broker: BrokerServer, request: AdminRequest, grant: Grant) -> Administration:
    return Administration(
        namespace=broker.namespace,
        authority=request.headers.get("host", "localhost"),
        now_ms=broker.now_ms(),
        api_version=request.query.get("api-version", LATEST),
        may_forward_to=lambda path: require_send(
            broker.policy, broker.name, request, grant, path, broker.now_ms() / 1000
        ),
    )


def _perform(
    broker: BrokerServer, request: AdminRequest, address: Address, grant: Grant
) -> Document:
    administration = _administration(broker, request, grant)
    match request.method:
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
        raise Unauthorized(
            f"{_lacking(request, resource)} The rule {token.rule_name!r} does not grant it."
        )
    return token


_ACTIONS = {"PUT": "EntityWrite", "DELETE": "EntityDelete"}
_VERBS = {"GET": "Get", "PUT": "CreateOrUpdate", "DELETE": "Delete"}
_PARTS = {
    AdminNode.SUBSCRIPTION: "Subscription",
    AdminNode.SUBSCRIPTIONS: "Subscriptions",
    AdminNode.RULE: "Rule",
    AdminNode.RULES: "Rules",
}


def _lacking(request: AdminRequest, resource: str) -> str:
    """What a request lacks without the right to manage, in Azure's words."""
    part, method = None, request.method
    with suppress(ArgumentInvalid):
        part = _PARTS.get(parse_address(request.raw_path).node)
    if part is not None:
        verb = "Enumerate" if part.endswith("s") else _VERBS.get(method, method)
        return (
            f"401 SubCode=40100: Unauthorized : Unauthorized access for '{verb}{part}' operation on"
            f" endpoint 'sb://{resource}'; it needs the right to manage."
        )
    if method in _ACTIONS:
        return (
            f"Authorization failed for specified action: Manage,{_ACTIONS[method]}. Resource:"
            f" 'sb://{resource}'."
        )
    return f"Manage,EntityRead claims required for this operation. Resource: 'sb://{resource}'."


def _is_missing(
    broker: BrokerServer, request: AdminRequest, address: Address, token: Verified
) -> bool:
    """Whether a request reads a missing queue or topic: who may send or listen learns that."""
    return (
        request.method == "GET"
        and address.node is AdminNode.ENTITY
        and isinstance(token, Grant)
        and any(token.allows(address.path, right) for right in (SEND, LISTEN))
        and broker.namespace.find(address.path) is None
    )


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


def _faults(broker: Steered, request: AdminRequest) -> Document:
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
