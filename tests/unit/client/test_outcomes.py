"""What a receiver asks for with a state on its link, and the request that means the same."""

from __future__ import annotations

import pytest

from twinbus.amqp.performatives import Accepted, Error, Modified, Rejected, Released, encode_state
from twinbus.amqp.types import Symbol
from twinbus.client.outcomes import (
    COMPLETE,
    DEFERRED,
    RELEASE,
    SettlingOutcome,
    abandon,
    dead_letter,
    defer,
    outcome_of,
)


def test_a_completion_and_a_release_are_the_known_ones() -> None:
    assert outcome_of(Accepted()) is COMPLETE
    assert outcome_of(Released()) is RELEASE
    assert outcome_of(None) is RELEASE


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (Modified(delivery_failed=True), abandon()),
        (Modified(delivery_failed=True, message_annotations={Symbol("a"): 1}), abandon({"a": 1})),
        (Modified(undeliverable_here=True), defer()),
        (
            Modified(undeliverable_here=True, message_annotations={Symbol("a"): "b"}),
            defer({"a": "b"}),
        ),
        (
            Rejected(
                error=Error(
                    condition=Symbol("com.microsoft:dead-letter"),
                    info={
                        Symbol("own"): 7,
                        Symbol("DeadLetterReason"): "bad",
                        Symbol("DeadLetterErrorDescription"): "very",
                    },
                )
            ),
            dead_letter("bad", "very", {"own": 7}),
        ),
    ],
)
def test_a_state_means_what_our_own_outcomes_mean(state: object, outcome: SettlingOutcome) -> None:
    found = outcome_of(state)
    assert (found.status, found.arguments) == (outcome.status, outcome.arguments)
    assert found.state == encode_state(state)  # type: ignore[arg-type]
    assert found.state == outcome.state


def test_a_rejection_without_an_error_is_a_dead_letter_without_a_reason() -> None:
    found = outcome_of(Rejected())
    assert (found.status, found.arguments) == ("suspended", {})
    assert outcome_of(Modified(undeliverable_here=True)).status == DEFERRED
