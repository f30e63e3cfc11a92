"""Claims-based security: clients put their tokens on the `$cbs` node before they open links.

Pure: a request's sections in, the whole response out, with what the token was worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twinbus.amqp.message import Properties, Sections, decode_map, decode_value, encode_message
from twinbus.amqp.types import DecodeError, Int
from twinbus.broker.links.management_request import correlation_id, text_of
from twinbus.broker.refusals import ArgumentInvalid, MalformedMessage, NotAllowed, Refusal
from twinbus.broker.sas import AccessPolicy, Grant, covers
from twinbus.servicebus.names import MANAGEMENT_SUFFIX, entity_address

PUT_TOKEN = "put-token"  # noqa: S105 - an operation's name


@dataclass(frozen=True, kw_only=True, slots=True)
class CbsAnswer:
    """The response to send, and what the token is worth."""

    response: bytes
    audience: str = ""
    """The name that the client put the token under: a later token of that name replaces it."""
    grant: Grant | None = None
    """Present if the token is valid."""
    refusal: Refusal | None = None
    """Present if the response is a refusal: the token is not valid, or its entity is missing."""


def handle(
    request: Sections,
    policy: AccessPolicy,
    now_s: float,
    resolve: Callable[[str], object],
    track: Callable[[Refusal], None] = lambda _refusal: None,
) -> CbsAnswer:
    """Answer one request on `$cbs`; `MalformedMessage` if the answer cannot be addressed.

    `resolve` raises `EntityNotFound` for the address of a missing entity.
    """
    message_id = correlation_id(request)
    audience, grant = "", None
    try:
        audience, token = _put_token(request)
        grant = policy.verify(token, now_s)
        _require_entity(audience, grant, resolve)
    except Refusal as refusal:
        track(refusal)
        response = _response(message_id, refusal.status, refusal.description)
        return CbsAnswer(response=response, audience=audience, grant=grant, refusal=refusal)
    return CbsAnswer(response=_response(message_id, 200, "OK"), audience=audience, grant=grant)


def _require_entity(audience: str, grant: Grant, resolve: Callable[[str], object]) -> None:
    """Refuse a token for a missing entity, as Azure does; some SDKs expect it here, not at a link.

    Only a client with a right on the entity learns that it is missing. Any other token is taken,
    and the link is refused.
    """
    path = entity_address(audience)
    if not path or path.startswith("$") or not covers(grant.path, path):
        return
    if path.lower().endswith(MANAGEMENT_SUFFIX):
        path = path[: -len(MANAGEMENT_SUFFIX)]
    resolve(path)


def _put_token(request: Sections) -> tuple[str, str]:
    """Audience and token of a put-token request.

    `type` is ignored: the Python SDK calls its shared access signatures "jwt".
    """
    try:
        headers = decode_map(request.application_properties)
        body = decode_value(request.body) if request.body else None
    except DecodeError as error:
        raise MalformedMessage(f"The request cannot be read: {error}") from error
    operation = text_of(headers.get("operation"))
    if operation != PUT_TOKEN:
        raise NotAllowed(f"$cbs knows the operation {PUT_TOKEN!r} only, not {operation!r}.")
    token = text_of(body)
    if not token:
        raise ArgumentInvalid("The put-token request has no token: its body must be a string.")
    return text_of(headers.get("name")) or "", token


def _response(request_id: Any, status: int, description: str) -> bytes:
    # No error condition: the Python SDK would then ignore status and description.
    return encode_message(
        properties=Properties(correlation_id=request_id),
        application_properties={"status-code": Int(status), "status-description": description},
        value=None,
    )
