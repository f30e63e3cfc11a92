"""The worlds that are explored, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest.mock import patch

from tests.exploration.explorer import Explorable, Exploration, Explorer
from tests.exploration.fleet import Fleet, FleetSettings
from tests.exploration.leases import LeaseSettings, Rivals
from tests.exploration.world import Settings, World, coarse_times

NO_LIMIT: Final = 1 << 30

NO_FAULTS: Final = {"stops": (), "crashes": 0, "answers": 0, "cuts": 0}


def world(**settings: object) -> Settings:
    return Settings(**{**NO_FAULTS, **settings})  # type: ignore[arg-type]


AnySettings = Settings | FleetSettings | LeaseSettings

SMALL: Final[dict[str, AnySettings]] = {
    "outage": world(stops=("primary",)),
    "lost answer": world(answers=1),
    "crash": world(crashes=1),
    "partition": world(cuts=1),
    "refusal": world(refusals=1),
    "a crash and a lost answer": world(crashes=1, answers=1),
    "backlog, a crash": world(stored=1, crashes=1),
    "backlog, a lost answer": world(stored=1, answers=1),
    "backlog, a partition": world(stored=1, cuts=1),
    "backlog, a refusal": world(stored=1, refusals=1),
    "a fleet with a host that is cut off": FleetSettings(cuts=1),
    "a fleet and a forged notice": FleetSettings(failures=1, forged=1),
    "a lease": LeaseSettings(cuts=1, kills=1),
}
"""Explored to the end in CI: one sender, one entity, two backlog queues, one syphon; two hosts, of
which each is enough for the other; two programs and one lease. With a backlog the message is
diverted and acknowledged before the world begins."""

LARGE: Final[dict[str, AnySettings]] = {
    "backlog, all faults": world(stored=1, crashes=1, answers=1, cuts=1),
    "all faults": world(crashes=1, answers=1, cuts=1),
    "a fleet in an outage": FleetSettings(stops=1),
    "a fleet of three": FleetSettings(hosts=3, quorum=2, stops=1, cuts=1),
    "a lease, cut twice": LeaseSettings(cuts=2, kills=2),
    "strict outage": world(stops=("primary",), messages=2, strict=True),
    "strict backlog": world(stored=2, messages=2, strict=True, answers=1),
    "two senders, a lost answer": world(senders=2, answers=1),
    "two senders, a crash": world(senders=2, crashes=1),
    "two senders, a partition": world(senders=2, cuts=1),
    "two senders in an outage": world(senders=2, stops=("primary",)),
    "two messages": world(messages=2, crashes=2, answers=2, cuts=2),
    "two of each": world(senders=2, crashes=2, answers=2, cuts=2),
}
"""Explored by `make soak`, breadth-first: to the end, or as far as STATES_MAX says.
Two senders are two applications, each with an entity of its own; they share two backlog queues."""

STATES_MAX: Final = {
    "a fleet of three": 40_000,
    "strict backlog": 5_000,
    "two messages": 4_000,
    "two of each": 4_000,
}
"""A thousand states take one to two seconds of processor time."""

WORLDS: Final = SMALL | LARGE


@contextmanager
def _coarse() -> Iterator[None]:
    with ExitStack() as stack:
        for module, name, value in coarse_times():
            stack.enter_context(patch.object(module, name, value))
        yield


def start(settings: AnySettings) -> Explorable:
    match settings:
        case FleetSettings():
            return Fleet(settings)
        case LeaseSettings():
            return Rivals(settings)
        case _:
            return World(settings)


def explore(settings: AnySettings, *, states_max: int = NO_LIMIT) -> Exploration:
    with _coarse():
        return Explorer(start(settings), states_max=states_max).run()
