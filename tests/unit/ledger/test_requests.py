"""Requests that Azure bills: their operation, their cause, and where they were made."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.ledger.requests import ACCEPT_SESSION, BilledRequests


class Kept:
    def __init__(self) -> None:
        self.records: list[tuple[str, dict[str, Any]]] = []

    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        found = {name: value for name, value in fields.items() if value is not None}
        self.records.append((operation, found))


@pytest.mark.parametrize(
    ("request_name", "operation"),
    [
        ("renew-lock", "renew"),
        ("renew-session-lock", "renew"),
        (ACCEPT_SESSION, "manage"),
        ("peek-message", "manage"),
    ],
)
@pytest.mark.parametrize("cause", ["syphon", "lease", "administration"])
def test_a_request_has_the_cause_of_its_caller(
    request_name: str, operation: str, cause: str
) -> None:
    ledger = Kept()
    BilledRequests("contoso-dr", cause=cause, side="secondary", ledger=ledger).made(
        "contoso/x-servicebus-transfer/0", request_name
    )
    assert ledger.records == [
        (
            operation,
            {
                "cause": cause,
                "namespace": "contoso-dr",
                "side": "secondary",
                "backlog_queue": "contoso/x-servicebus-transfer/0",
                "outcome": "ok",
            },
        )
    ]


def test_a_request_of_a_consumer_names_its_entity_and_the_pair() -> None:
    ledger = Kept()
    requests = BilledRequests(
        "contoso-dr", cause="consumer", side="secondary", pair="contoso+contoso-dr", ledger=ledger
    )
    requests.made("orders", "renew-lock", "gone", is_known=False)
    assert ledger.records == [
        (
            "renew",
            {
                "cause": "consumer",
                "pair": "contoso+contoso-dr",
                "namespace": "contoso-dr",
                "side": "secondary",
                "entity": "orders",
                "outcome": "unknown",
                "error": "gone",
            },
        )
    ]
