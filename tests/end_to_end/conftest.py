"""What tests on real processes share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def leaks_collected() -> Iterator[None]:
    """Have what the SDK leaked collected here, not in the middle of another test."""
    yield
    gc.collect()
