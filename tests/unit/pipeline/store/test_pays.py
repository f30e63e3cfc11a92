"""When an update compacts the tables by itself."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from twinbus.pipeline.store.compaction import LARGE_BYTES, SMALL_FILES_MAX, TINY_BYTES, pays
from twinbus.pipeline.store.lake import DataFile, Snapshot
from twinbus.pipeline.tables.gold import BRONZE, JOURNEYS

MANY = SMALL_FILES_MAX + 1


@pytest.mark.parametrize("table", [BRONZE, JOURNEYS])
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1_000] * MANY, True),
        ([1_000] * SMALL_FILES_MAX, False),
        # These would not become much fewer.
        ([TINY_BYTES] * MANY, False),
        # Large files are left alone, however many there are.
        ([LARGE_BYTES] * MANY, False),
        ([*[LARGE_BYTES] * MANY, *[1_000] * MANY], True),
    ],
)
def test_compaction_pays_with_many_tiny_files(table: str, sizes: list[int], expected: bool) -> None:
    files = tuple(DataFile(str(number), size, 1, 0) for number, size in enumerate(sizes))
    store: Any = mock.Mock()
    store.lake.files = lambda asked, snapshot: files if asked == table else ()
    assert pays(store, Snapshot()) is expected
