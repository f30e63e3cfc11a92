"""put-token as the SDK sends it, answered in a way the SDK understands."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._pyamqp.message import Message
from azure.servicebus._pyamqp.message import Properties as SdkProperties

from twinbus.amqp.message import Properties, Sections, decode_properties, encode_message, split
from twinbus.amqp.types import ULong
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.links.requests import CbsAnswer, answer_token
from twinbus.broker.refusals import EntityNotFound, MalformedMessage, Unauthorized
from twinbus.broker.sas import AccessPolicy
from twinbus.namespace.tokens import sign

NOW_S = 1_700_000_000.0
LATER_S = int(NOW_S) + 3600
AUDIENCE = "sb://localhost:5672/orders"
RULE = AuthorizationRule(key_name="root", primary_key="k", rights=frozenset({"Send", "Listen"}))
POLICY = AccessPolicy([RULE])


def resolve(path: str) -> None:
    if path.lower() != "orders":
        raise EntityNotFound.of(path, "this entity does not exist")


def put_token(
    token: object,
    request_id: Any = "1",
    operation: object = "put-token",
    audience: str = AUDIENCE,
) -> CbsAnswer:
    headers = {"operation": operation, "type": "servicebus.windows.net:sastoken", "name": audience}
    wire = encode_message(
        properties=Properties(message_id=request_id), application_properties=headers, value=token
    )
    return answer_token(split(wire), POLICY, NOW_S, resolve)


def read_by_sdk(answer: CbsAnswer) -> Any:
    return decode_payload(memoryview(answer.response))


def status_of(answer: CbsAnswer) -> tuple[int, bytes]:
    """Status and description as the SDK's management link reads them."""
    headers = read_by_sdk(answer).application_properties
    return headers[b"status-code"], headers[b"status-description"]


def test_the_sdks_own_request_is_granted() -> None:
    request_id = uuid.uuid4()
    request = Message(
        value=sign(AUDIENCE, "root", "k", LATER_S),
        properties=SdkProperties(message_id=request_id),
        # The SDK says "jwt" of a shared access signature, and sends some names as binary.
        application_properties={
            b"name": AUDIENCE, b"operation": b"put-token", b"type": "jwt", b"expiration": None
        },
    )  # fmt: skip
    wire = bytearray()
    encode_payload(wire, request)
    answer = answer_token(split(bytes(wire)), POLICY, NOW_S, resolve)
    assert answer.refusal is None
    assert answer.grant is not None
    assert (answer.grant.path, answer.grant.rights) == ("orders", RULE.rights)
    assert answer.audience == AUDIENCE
    response = read_by_sdk(answer)
    assert response.properties[5] == request_id
    assert response.value is None
    assert status_of(answer) == (200, b"OK")


@pytest.mark.parametrize("request_id", ["text", uuid.UUID(int=7), ULong(9), b"\x01\x02"])
def test_the_response_bears_the_request_id_in_its_own_type(request_id: Any) -> None:
    answer = put_token(sign(AUDIENCE, "root", "k", LATER_S), request_id)
    correlation_id = decode_properties(split(answer.response).properties).correlation_id
    assert (type(correlation_id), correlation_id) == (type(request_id), request_id)


def test_a_bad_token_is_401_with_the_reason_and_no_error_condition() -> None:
    answer = put_token(sign(AUDIENCE, "root", "wrong", LATER_S))
    assert answer.grant is None
    assert isinstance(answer.refusal, Unauthorized)
    status, description = status_of(answer)
    assert status == 401
    assert b"does not match a key of the shared access rule 'root'" in description
    # With an error condition the SDK would drop the status and the reason.
    assert b"error-condition" not in read_by_sdk(answer).application_properties


@pytest.mark.parametrize("path", ["ghost", "ghost/$management", "Ghost/$Management"])
def test_a_token_for_a_missing_entity_is_404(path: str) -> None:
    audience = f"amqps://localhost:5672/{path}"
    answer = put_token(sign(audience, "root", "k", LATER_S), audience=audience)
    status, description = status_of(answer)
    assert (status, type(answer.refusal)) == (404, EntityNotFound)
    assert b"host' could not be found" in description
    # The client is no stranger: its token is valid.
    assert answer.grant is not None


@pytest.mark.parametrize("path", ["", "ORDERS", "orders/$Management", "$coordinator"])
def test_a_token_for_an_entity_the_namespace_or_a_node_of_it_is_taken(path: str) -> None:
    audience = f"sb://localhost:5672/{path}"
    assert put_token(sign(audience, "root", "k", LATER_S), audience=audience).refusal is None


def test_a_token_without_rights_on_an_entity_does_not_tell_whether_it_exists() -> None:
    # The name of a request is what the client writes there; the signature covers the audience.
    token = sign(AUDIENCE, "root", "k", LATER_S)
    for path in ("ghost", "orders2", "ordersx/$management"):
        answer = put_token(token, audience=f"sb://localhost:5672/{path}")
        assert status_of(answer) == (200, b"OK")
    wrong = sign("sb://localhost:5672/ghost", "root", "wrong", LATER_S)
    assert status_of(put_token(wrong, audience="sb://localhost:5672/ghost"))[0] == 401


def test_a_jwt_is_refused_with_a_hint() -> None:
    assert b"Use a shared access key" in status_of(put_token("eyJ0eXAiOiJKV1QifQ.x.y"))[1]


def test_requests_that_put_no_token_are_refused() -> None:
    assert status_of(put_token("t", operation="delete-token"))[0] == 400
    assert status_of(put_token(None)) == (
        400,
        b"The put-token request has no token: its body must be a string.",
    )
    broken = Sections(application_properties=b"\x00\x53\x74\xc1\x02\x01\x40", body=b"")
    assert isinstance(answer_token(broken, POLICY, NOW_S, resolve).refusal, MalformedMessage)


def test_a_request_whose_id_cannot_be_read_cannot_be_answered() -> None:
    with pytest.raises(MalformedMessage):
        answer_token(Sections(properties=b"\x00\x53\x73\xc0\x02\x01"), POLICY, NOW_S, resolve)
