"""The verbs of a syphon: what they do, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from twinbus.control.protocol import ControlRefused
from twinbus.control.verbs import steering_verbs
from twinbus.syphon.core.pacing import Rate
from twinbus.syphon.host import SyphonGroup


def test_the_rate_of_a_syphon_is_set_and_taken_back() -> None:
    group = SyphonGroup(Rate())
    rate: Any = steering_verbs(group)["rate"].run
    assert rate("50") == {"rate": "50"}
    assert group.rate.governor.most_per_s == 50
    for wrong in ("fast", "-1", "nan", ""):
        with pytest.raises(ControlRefused, match="a rate is a number of messages a second"):
            rate(wrong)
    assert group.rate.governor.most_per_s == 50
    rate("adaptive")
    assert group.rate.governor.most_per_s is None
