"""What the tests of the model need: TLC and a Java to run it."""

from __future__ import annotations

import pytest

from tests.model.tlc import why_not


@pytest.fixture
def tlc() -> None:
    """Skip the test where TLC cannot run. To ask for Java costs a process: not at collection."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
