"""Settings that all tests share."""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings

# No deadline: it measures the machine's mood, not the code; a hang meets pytest's timeout.
settings.register_profile("test", deadline=None)
# `make soak` asks the same questions far more often.
settings.register_profile("soak", deadline=None, max_examples=5_000)
settings.load_profile("test")

WITH_THE_SDK = ("contract", "end_to_end")
"""Marks of tests in which the SDK meets errors: it then drops sockets without closing them. Ours
are looked for by name where it matters (contract/test_pairing_outage.py, test_embedded.py)."""

SPARK_TESTS = ("tests/spark/", "tests/end_to_end/test_drill.py")
"""They run one after the other: two Sparks at once are slower than two in turn."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Forgive the SDK its sockets; keep together what shares a broker or a Spark session."""
    for item in items:
        if item.nodeid.startswith(SPARK_TESTS):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif _uses_the_sdk(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
        if _uses_the_sdk(item):
            item.add_marker(pytest.mark.filterwarnings("ignore:[Uu]nclosed :ResourceWarning"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Have what the SDK leaked collected here, not in the middle of another test."""
    if _uses_the_sdk(item):
        gc.collect()


def _uses_the_sdk(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in WITH_THE_SDK)
