"""The fuzzer among the tests: a few examples of each part always, ten minutes of them in soak."""

from __future__ import annotations

import random
import time

import pytest

from tests.fuzz.part import Part
from tests.fuzz.parts import PARTS
from tests.fuzz.resources import RESOURCES, Step
from twinbus.broker import sas
from twinbus.broker.engine.directory import Directory
from twinbus.broker.engine.queue import Queue
from twinbus.servicebus import names

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
        (
            names,
            "ADDRESS_MAX",
            10**6,
            Step(0, "tokens", 89),
            "bytes stay after the clients have left",
        ),
    ],
    ids=["parts", "names of tokens", "cache of addresses"],
)
def test_faults_that_are_put_back_are_found(
    monkeypatch: pytest.MonkeyPatch, place: object, name: str, fault: object, step: Step, seen: str
) -> None:
    monkeypatch.setattr(place, name, fault)
    with pytest.raises(AssertionError, match=seen):
        RESOURCES.check([step])


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
