"""Ten thousand entities in a pair, a thousand of them failed over: little memory, no busy loop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end import many_entities
from tests.processes import ServedBroker

pytestmark = pytest.mark.end_to_end

MEMORY_MAX_MB = 100


def test_ten_thousand_entities_cost_little(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServedBroker(tmp_path, "dr", ephemeral=True) as secondary:
        ended = subprocess.run(
            [sys.executable, many_entities.__file__, secondary.connection_string()],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    with capsys.disabled():
        print(f"\n{figures}")  # noqa: T201  # figures that were measured are a result
    assert figures["entities"] == many_entities.ENTITIES
    assert figures["failed_over"] == figures["diverted"] == many_entities.DOWN
    assert figures["memory_mb"] < MEMORY_MAX_MB
    assert figures["idle_cpu"] < many_entities.IDLE_CPU_MAX
    # None for an entity: each has a timer of the loop and nothing that runs.
    assert figures["tasks"] < 10
