"""The fuzzer among the tests: a few examples of each part always, ten minutes of them in soak."""

from __future__ import annotations

import random
import time

import pytest

from tests.fuzz.part import Part
from tests.fuzz.parts import PARTS

SHORT_SEED = 14
SOAK_S = 600.0
"""Processor time of the soak, shared by the parts."""


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_few_examples_find_nothing(part: Part) -> None:
    part.run(SHORT_SEED, part.short)


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
