"""One message after another over links of our own (`links="own"`), against the plain SDK.

As `paired_send_vs_sdk`, with the ledger on, but the paired sender's messages do not go through the
SDK's sender.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.paired_send_vs_sdk import BODY, MESSAGES, make
from bench.paired_sides import ROUNDS, UNIT, both_sides

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from bench.harness import Progress, Sides

__all__ = ["ROUNDS", "UNIT", "sides"]


def sides(progress: Progress) -> AbstractContextManager[Sides]:
    """A plain sender, and a paired one over own links, to one queue."""
    words = f"own links, asyncio, {len(BODY)} bytes, one at a time, ledger on"
    return both_sides(progress, make, MESSAGES, words, "own")
