"""One message after another without asyncio, over links of our own, against the SDK's sync sender.

As `blocking_send_vs_sdk`, with `links="own"`: a busy sender's messages go out on its own thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.blocking_send_vs_sdk import blocking_sides
from bench.paired_sides import ROUNDS, UNIT

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from bench.harness import Progress, Sides

__all__ = ["ROUNDS", "UNIT", "sides"]


def sides(progress: Progress) -> AbstractContextManager[Sides]:
    """A plain sender, and a paired one over own links, to one queue."""
    return blocking_sides(progress, "own")
