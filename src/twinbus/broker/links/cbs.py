"""Claims-based security: a client puts its tokens on `$cbs` before it opens other links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twinbus.amqp.message import Properties, Sections, decode_map, decode_value, encode_message
from twinbus.amqp.types import Int
from twinbus.broker.links.context import LinkClient, PeerContext
from twinbus.broker.links.requests import correlation_id, decoded, text_of
from twinbus.broker.refusals import ArgumentInvalid, NotAllowed, Refusal
from twinbus.broker.sas import AccessPolicy, ConnectionGrants, Grant, covers, require_short
from twinbus.servicebus.names import MANAGEMENT_SUFFIX, entity_address

PUT_TOKEN = "put-token"  # noqa: S105 - an operation's name


def put_token(context: PeerContext, client: LinkClient, request: Sections, now_ms: int) -> bytes:
    """Answer a request on `$cbs`: the connection is granted what its token allows.

    `MalformedMessage` if the answer cannot be addressed.
    """
    message_id = correlation_id(request)
    try:
        audience, token = _read_token(request)
        require_short(audience)
        grant = context.policy.verify(token, now_ms / 1000)
        client.trust(grant)
        _require_entity(audience, grant, context.resolve)
        client.grants.put(audience, grant)
    except Refusal as refusal:
        client.log_refusal("a token", refusal)
        return _token_response(message_id, refusal.status, refusal.description)
    # As Azure, not 200: the Rust client takes no other answer.
    return _token_response(message_id, 202, "Accepted")


def log_in(policy: AccessPolicy, grants: ConnectionGrants, name: str, key: str) -> str | None:
    """Grant a connection what the key of a rule grants (SASL PLAIN); returns why it is refused."""
    try:
        granted = policy.login(name, key)
    except Refusal as refusal:
        return refusal.description
    for grant in granted:
        # Audiences of tokens are addresses, so the names of these differ from theirs.
        grants.put(f"login {grant.path}", grant)
    return None


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


def _read_token(request: Sections) -> tuple[str, str]:
    """Audience and token of a put-token request.

    `type` is ignored: the Python SDK calls its shared access signatures "jwt".
    """
    headers = decoded(decode_map, request.application_properties)
    body = decoded(decode_value, request.body) if request.body else None
    operation = text_of(headers.get("operation"))
    if operation != PUT_TOKEN:
        raise NotAllowed(f"$cbs knows the operation {PUT_TOKEN!r} only, not {operation!r}.")
    token = text_of(body)
    if not token:
        raise ArgumentInvalid("The put-token request has no token: its body must be a string.")
    return text_of(headers.get("name")) or "", token


def _token_response(request_id: Any, status: int, description: str) -> bytes:
    # No error condition: the Python SDK would then ignore status and description.
    return encode_message(
        properties=Properties(correlation_id=request_id),
        application_properties={"status-code": Int(status), "status-description": description},
        value=None,
    )
