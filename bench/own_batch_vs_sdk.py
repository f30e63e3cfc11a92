"""Lists of a hundred messages over links of our own (`links="own"`), against the plain SDK.

As `paired_batch_vs_sdk`, with the ledger on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.paired_batch_vs_sdk import BATCH_SIZE, BATCHES, BODY, ROUNDS, make
from bench.paired_sides import UNIT, both_sides

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from bench.harness import Progress, Sides

__all__ = ["ROUNDS", "UNIT", "sides"]


def sides(progress: Progress) -> AbstractContextManager[Sides]:
    """A plain sender, and a paired one over own links, to one queue."""
    words = f"own links, asyncio, lists of {BATCH_SIZE} x {len(BODY)} bytes, ledger on"
    return both_sides(progress, make, BATCHES * BATCH_SIZE, words, "own")
