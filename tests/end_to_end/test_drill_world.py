"""The namespaces of a drill: killed, started again, and gone with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from twinbus.console.drill.world import (
    ENTITIES,
    DrillError,
    NamespaceProcess,
    World,
    administration,
    create_entities,
)

pytestmark = pytest.mark.end_to_end


def test_a_killed_namespace_comes_back_on_its_port_with_its_entities() -> None:
    with World() as world:
        world.primary.start()
        first = world.primary.port, world.primary.connection_string
        asyncio.run(create_entities(world.primary.connection_string))
        world.primary.kill()
        world.primary.start()
        assert (world.primary.port, world.primary.connection_string) == first
        assert asyncio.run(queues(world.primary.connection_string)) == ["orders", "payments"]
        directory = world.directory
    assert not directory.exists()
    assert world.primary.pid == 0


async def queues(connection_string: str) -> list[str]:
    async with administration(connection_string) as admin:
        found = [queue.name async for queue in admin.list_queues()]
    assert [entity.path for entity in ENTITIES if not entity.is_topic] == sorted(found)
    return sorted(found)


def test_a_namespace_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where a directory should be")
    namespace = NamespaceProcess("contoso", tmp_path, tmp_path / "views")
    with pytest.raises(DrillError, match=r"contoso did not start: twinbus: .*data"):
        namespace.start()
    namespace.stop()
