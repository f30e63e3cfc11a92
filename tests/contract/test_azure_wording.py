"""Refusals in Azure's words, with a TrackingId that the broker's log shows too."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)

from tests.contract.pairs import embedded
from tests.official_sdk import administration, client
from twinbus import EmbeddedBroker
from twinbus.broker.descriptions import AuthorizationRule

pytestmark = pytest.mark.contract

TRACKING = re.compile(r"TrackingId:[0-9a-f-]{36}_B, SystemTracker:contoso, Timestamp:\d{4}-")
LISTENER = AuthorizationRule(key_name="listener", primary_key="KEY", rights=frozenset({"Listen"}))


broker = embedded("contoso", rules=[LISTENER], scope="module")


def send(queue: str) -> Callable[[ServiceBusClient], Any]:
    def act(sdk: ServiceBusClient) -> None:
        with sdk.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage("x"))

    return act


def receive(queue: str) -> Callable[[ServiceBusClient], Any]:
    def act(sdk: ServiceBusClient) -> None:
        with sdk.get_queue_receiver(queue) as receiver:
            receiver.receive_messages(1, max_wait_time=1)

    return act


def refused(text: str, act: Callable[[ServiceBusClient], Any], error: Any) -> str:
    with client(text) as sdk, pytest.raises(error) as caught:
        act(sdk)
    return f"{caught.value} {getattr(caught.value, 'inner_exception', '')}"


def test_a_missing_entity_is_told_by_the_text_that_the_javascript_sdk_looks_for(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    text = broker.connection_string()
    for act in (send("ghost"), receive("ghost")):
        said = refused(text, act, ServiceBusAuthenticationError)
        assert "Status code: 404" in said
        assert "The messaging entity 'sb://contoso/ghost' could not be found" in said
        tracking = TRACKING.search(said)
        assert tracking is not None
        assert tracking.group() in caplog.text


def test_a_missing_right_and_a_bad_key_have_azures_words(broker: EmbeddedBroker) -> None:
    text = broker.connection_string()
    listening = text.replace("RootManageSharedAccessKey", "listener").replace(
        "SAS_KEY_VALUE", "KEY"
    )
    said = refused(listening, send("orders"), ServiceBusAuthorizationError)
    assert "Unauthorized access. 'Send' claim(s) are required" in said
    assert TRACKING.search(said)
    wrong = text.replace("SAS_KEY_VALUE", "WRONG")
    for string, expected in (
        (listening, "'Manage' claim(s) are required"),
        (wrong, "InvalidSignature: The token has an invalid signature."),
    ):
        with administration(string) as admin, pytest.raises(ClientAuthenticationError) as caught:
            admin.create_queue("mine")
        assert expected in str(caught.value)
        assert TRACKING.search(str(caught.value))
