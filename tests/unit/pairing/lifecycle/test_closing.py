"""A pair of which one side was closed or faulted before it was started."""

from __future__ import annotations

import pytest

from twinbus import Namespace
from twinbus.errors import PairClosedError, PairFaultedError
from twinbus.pair import pair_namespaces

STRING = "Endpoint=sb://{}.example/;SharedAccessKeyName=Root;SharedAccessKey=s3cret"


@pytest.mark.virtual_time
@pytest.mark.parametrize("side", ["primary", "secondary"])
@pytest.mark.parametrize("is_faulted", [False, True])
async def test_it_does_not_start_and_gives_its_namespaces_back(side: str, is_faulted: bool) -> None:
    first, second = (Namespace.from_connection_string(STRING.format(name)) for name in "ab")
    pair = pair_namespaces(first, second)
    ended = getattr(pair, side)
    if is_faulted:
        ended.fault(RuntimeError("by hand"))
    else:
        await ended.close()
    # Only a fault of the primary faults the pair.
    kind = PairFaultedError if is_faulted and side == "primary" else PairClosedError
    with pytest.raises(kind):
        await pair.start()
    assert pair.primary.state != "open"
    for namespace in (first, second):
        namespace.claim()
