"""The TrackingId in the text of a refusal."""

from __future__ import annotations

import re

from twinbus.broker.links.context import RefusalTracker
from twinbus.broker.refusals import EntityNotFound, NotAllowed, Unauthorized

TRACK = RefusalTracker("contoso", lambda: 1_700_000_000_000)
TRACKED = re.compile(
    r" TrackingId:[0-9a-f-]{36}_B, SystemTracker:contoso, Timestamp:2023-11-14T22:13:20$"
)


def test_a_missing_entity_and_a_missing_right_have_azures_words_and_an_id() -> None:
    missing = EntityNotFound.of("sb://contoso/orders", "create it first")
    lacking = Unauthorized.lacking("Send", "orders")
    for refusal in (missing, lacking):
        TRACK(refusal)
        assert TRACKED.search(refusal.description)
    # The pattern by which the JavaScript SDK tells a missing entity.
    assert re.match(r"The messaging entity .* could not be found", missing.description)
    assert lacking.description.startswith("Unauthorized access. 'Send' claim(s) are required")


def test_a_refusal_gets_one_id_and_not_every_kind_gets_one() -> None:
    missing, other = EntityNotFound.of("orders", "it was deleted"), NotAllowed("no")
    TRACK(missing)
    once = missing.description
    TRACK(missing)
    TRACK(other)
    assert missing.description == once
    assert other.description == "no"
