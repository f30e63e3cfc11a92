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
IDLE_CPU_MAX = 0.03
"""Of one processor, while nothing is sent and no ping is due."""


def figures_of(directory: Path, *arguments: str) -> dict[str, float]:
    """What the program measured, which is also printed: it is a result."""
    with ServedBroker(directory, "dr", ephemeral=True) as secondary:
        ended = subprocess.run(
            [sys.executable, many_entities.__file__, secondary.connection_string(), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    sys.stdout.write(f"\n{ended.stdout}")
    figures: dict[str, float] = json.loads(ended.stdout)
    return figures


def test_ten_thousand_entities_cost_little(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        figures = figures_of(tmp_path)
    assert figures["entities"] == many_entities.ENTITIES
    assert figures["failed_over"] == figures["diverted"] == many_entities.DOWN
    assert figures["memory_mb"] < MEMORY_MAX_MB


@pytest.mark.soak  # half a minute of waiting; test_session_routing.py counts wake-ups in CI
def test_ten_thousand_idle_entities_use_no_processor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        figures = figures_of(tmp_path, "--idle")
    assert figures["idle_cpu"] < IDLE_CPU_MAX
    # None for an entity: each has a timer of the loop and nothing that runs.
    assert figures["tasks"] < 10
