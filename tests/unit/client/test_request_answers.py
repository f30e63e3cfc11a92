"""What the answer of `$cbs` or `$management` says against a request, whatever it holds."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.client.request_node import refusal_in
from twinbus.servicebus.failures import FailureMeaning


@pytest.mark.parametrize("name", ["status-code", "statusCode"])
@pytest.mark.parametrize("status", [200, 202, 204])
def test_a_request_that_was_carried_out_is_not_refused(name: str, status: int) -> None:
    assert refusal_in({name: status}, "$cbs") is None


@pytest.mark.parametrize(
    ("headers", "status", "meaning"),
    [
        ({"status-code": 404, "status-description": "none"}, 404, FailureMeaning.NOT_FOUND),
        ({"statusCode": 503}, 503, FailureMeaning.UNREACHABLE),
        ({}, 0, FailureMeaning.UNAUTHORIZED),
        ({"status-code": "many"}, 0, FailureMeaning.UNAUTHORIZED),
        ({"status-code": None}, 0, FailureMeaning.UNAUTHORIZED),
        ({"status-code": [200]}, 0, FailureMeaning.UNAUTHORIZED),
        ({"status-code": b"\xff", "status-description": 7}, 0, FailureMeaning.UNAUTHORIZED),
    ],
)
def test_any_other_answer_is_a_refusal_also_without_a_number(
    headers: dict[str, Any], status: int, meaning: FailureMeaning
) -> None:
    refusal = refusal_in(headers, "$cbs")
    assert refusal is not None
    assert (refusal.status, refusal.meaning) == (status, meaning)
    assert str(refusal).startswith("$cbs: ")
