"""The fuzzer among the tests: a few examples of each part always, ten minutes of them in soak."""

from __future__ import annotations

import random
import sys
import time

import pytest

from tests.fuzz import gateways
from tests.fuzz.gateways import GATEWAY_ACTS, GATEWAYS, GatewayWorld
from tests.fuzz.part import Part, run_async
from tests.fuzz.parts import PARTS
from tests.fuzz.resources import ACTS, RESOURCES, Acts, Step, waves_of
from tests.fuzz.world import FuzzWorld
from twinbus.broker import sas
from twinbus.broker.engine.directory import Directory
from twinbus.broker.engine.queue import Queue
from twinbus.gateway.relay import PrimaryRelay

SHORT_SEED = 14
SOAK_S = 600.0
"""Processor time of the soak, shared by the parts."""


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_few_examples_find_nothing(part: Part) -> None:
    part.run(SHORT_SEED, part.short)


def _any_spelling(directory: Directory, key: str) -> Queue | None:
    """A part of its own for each spelling of its address."""
    name, found, _ = key.partition("/$transfer/$deadletterqueue")
    owner = directory._entities.get(name.rstrip("/"))
    if not found or not isinstance(owner, Queue):
        return None
    part = directory._parts[key] = directory._make_empty(owner, key)
    return part


@pytest.mark.parametrize(
    ("place", "name", "fault", "step", "seen"),
    [
        (Directory, "_transfer_part", _any_spelling, Step(0, "parts", 99), "parts of entities"),
        (sas, "AUDIENCE_MAX", 10**6, Step(0, "tokens", 88), "characters of a token's name"),
    ],
    ids=["parts", "names of tokens"],
)
def test_faults_that_are_put_back_are_found(
    monkeypatch: pytest.MonkeyPatch, place: object, name: str, fault: object, step: Step, seen: str
) -> None:
    monkeypatch.setattr(place, name, fault)
    with pytest.raises(AssertionError, match=seen):
        RESOURCES.check([step])


SILENT_AND_ASKED = [Step(0, "ask", 1), Step(0, "hold", 0), *[Step(0, "ask", 98)] * 3]


@pytest.mark.parametrize(
    ("place", "name", "fault", "story", "seen"),
    [
        (
            PrimaryRelay,
            "_gone",
            lambda *_: None,
            [Step(0, "receivers", 4)],
            "links that are open, or being opened or closed> of clients that are gone",
        ),
        (gateways, "UNANSWERED_MAX", 200, SILENT_AND_ASKED, "requests without an answer"),
    ],
    ids=["links", "requests"],
)
def test_faults_that_are_put_back_into_a_gateway_are_found(
    monkeypatch: pytest.MonkeyPatch,
    place: object,
    name: str,
    fault: object,
    story: list[Step],
    seen: str,
) -> None:
    monkeypatch.setattr(place, name, fault)
    with pytest.raises(AssertionError, match=seen):
        GATEWAYS.check(story)


@pytest.mark.soak
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_ten_minutes_of_examples_find_nothing(part: Part) -> None:
    began_s = time.process_time()
    while time.process_time() - began_s < SOAK_S / len(PARTS):
        seed = random.randrange(2**32)
        try:
            part.run(seed, part.round, tries_finds=False)
        except BaseException as error:
            error.add_note(f"replay it with: make fuzz PART={part.name} SEED={seed}")
            raise


WAVES = 24
LEVEL_BYTES = 8 * 1024 * 1024
"""What the later half of the waves may have more than the earlier: the allocator moves a little."""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "acts"), [(FuzzWorld, ACTS), (GatewayWorld, GATEWAY_ACTS)], ids=["broker", "gateway"]
)
def test_memory_is_level_after_waves_of_hostile_clients(kind: type[FuzzWorld], acts: Acts) -> None:
    resident: list[int] = []

    async def run() -> None:
        resident.extend(await waves_of(kind, acts, WAVES, random.randrange(2**32)))

    run_async(run())
    figures = " ".join(f"{each / 1e6:.0f}" for each in resident)
    sys.stdout.write(f"resident MB after each of {WAVES} waves: {figures}\n")
    assert max(resident[WAVES // 2 :]) - max(resident[: WAVES // 2]) < LEVEL_BYTES, figures
