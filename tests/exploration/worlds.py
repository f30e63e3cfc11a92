"""The worlds that are explored, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest.mock import patch

from tests.exploration.explorer import Exploration, Explorer
from tests.exploration.world import Settings, World, coarse_times

NO_FAULTS: Final = {"stops": (), "crashes": 0, "answers": 0, "cuts": 0}


def world(**settings: object) -> Settings:
    return Settings(**{**NO_FAULTS, **settings})  # type: ignore[arg-type]


SMALL: Final = {
    "outage": world(stops=("primary",)),
    "lost answer": world(answers=1),
    "crash": world(crashes=1),
    "partition": world(cuts=1),
    "refusal": world(refusals=1),
}
"""Explored to the end in CI: one sender, one entity, two backlog queues, one syphon."""

LARGE: Final = {"strict outage": world(stops=("primary",), messages=2, strict=True)}
"""Explored to the end by `make soak`; a planted bug shows itself soon."""

WORLDS: Final = SMALL | LARGE


@contextmanager
def _coarse() -> Iterator[None]:
    with ExitStack() as stack:
        for module, name, value in coarse_times():
            stack.enter_context(patch.object(module, name, value))
        yield


def explore(settings: Settings, *, states_max: int = 1 << 30) -> Exploration:
    with _coarse():
        return Explorer(World(settings), states_max=states_max).run()
