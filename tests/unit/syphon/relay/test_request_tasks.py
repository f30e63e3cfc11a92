"""What a relay leaves behind when it is closed in the turn in which it began an errand."""

from __future__ import annotations

import gc
import warnings

from twinbus.namespace.endpoint import endpoint_of
from twinbus.syphon.core.pump import Pump
from twinbus.syphon.relay.relay import Relay


class NoLedger:
    def record(self, operation: str, *, at_ms: int | None = None, **fields: object) -> None:
        """Nothing."""


async def test_an_errand_that_is_cancelled_before_its_first_turn_is_not_warned_of() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        text = "Endpoint=sb://contoso;SharedAccessKeyName=a;SharedAccessKey=b"
        place = endpoint_of(text)
        relay = Relay(place, place, "queue", pump=Pump(), ledger=NoLedger())
        relay._requests.start(relay._requests.find_deferred())
        await relay.close()
        gc.collect()
    assert [str(one.message) for one in caught] == []
