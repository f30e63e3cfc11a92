"""Settings that all tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

# No deadline: it measures the machine's mood, not the code; a hang meets pytest's timeout.
# The same examples each time: whether a change lands must not hang on chance.
settings.register_profile("test", deadline=None, derandomize=True)
# `make soak` asks the same questions far more often, and new ones each time.
settings.register_profile("soak", deadline=None, max_examples=5_000)
settings.load_profile("test")

SPARK_TESTS = ("tests/spark/", "tests/end_to_end/test_drill.py")
"""They run one after the other: two Sparks at once are slower than two in turn."""

SHARING = ("contract", "end_to_end")
"""Marks of tests that share a broker with the others of their file."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep together what shares a broker or a Spark session; first, so that xdist sees it."""
    for item in items:
        if item.nodeid.startswith(SPARK_TESTS):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif any(item.get_closest_marker(mark) for mark in SHARING):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
