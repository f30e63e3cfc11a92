"""The documents that the page keeps for a moment."""

from __future__ import annotations

from pathlib import Path

from tests.unit.page.test_app import ID, VIEWER, World
from twinbus.ledger import LedgerWriter
from twinbus.page.documents import REMEMBERED_MAX


async def test_a_viewer_who_asks_for_many_timelines_does_not_fill_the_memory(
    tmp_path: Path,
) -> None:
    with LedgerWriter(tmp_path) as ledger:
        world = World(ledger)
        await world.live.refresh()
        for number in range(REMEMBERED_MAX + 9):
            window = f"from={100_000 - 20 * number}&to=100000"
            answer = await world.get(f"/api/timeline?pair={ID}&{window}", VIEWER)
            assert answer.status == 200
        assert len(world.documents._remembered) == REMEMBERED_MAX
