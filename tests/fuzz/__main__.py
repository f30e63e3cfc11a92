"""Fuzzes the broker and the syphon for some minutes: python -m tests.fuzz --minutes 10

Each part runs round after round, each round from a seed of its own. A find ends the run with exit
code 1, the smallest example that fails, and the command that replays it.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import traceback

from tests.fuzz.part import EndlessExample, Part
from tests.fuzz.parts import PARTS

SEED_MAX = 2**32
LINE_WIDTH = 78
LINE_LENGTH_MAX = 1000
"""Characters of one line of a report: an example may hold long texts."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to search")
    parser.add_argument("--part", choices=list(PARTS), help="only this part")
    parser.add_argument("--seed", type=int, help="replay one round of --part")
    given = parser.parse_args()
    logging.getLogger("twinbus").addHandler(logging.NullHandler())
    chosen = [PARTS[given.part]] if given.part else list(PARTS.values())
    if given.seed is not None and given.part is None:
        parser.error("--seed needs --part")
    if given.seed is not None:
        return 0 if _runs_clean(chosen[0], given.seed) else 1
    return _search(chosen, given.minutes * 60)


def _search(parts: list[Part], limit_s: float) -> int:
    """Give each part the same time, until all time is used or something is found."""
    chance = random.SystemRandom()
    spent_s = {part.name: 0.0 for part in parts}
    counts = dict.fromkeys(spent_s, 0)
    began_s = time.monotonic()
    while (so_far_s := time.monotonic() - began_s) < limit_s:
        part = min(parts, key=lambda each: spent_s[each.name])
        _show(f"{so_far_s:5.0f} s  {part.name}: {counts[part.name]} examples so far")
        round_s = time.monotonic()
        if not _runs_clean(part, chance.randrange(SEED_MAX), tries_finds=not counts[part.name]):
            return 1
        spent_s[part.name] += time.monotonic() - round_s
        counts[part.name] += part.round
    _show("")
    figures = ", ".join(f"{name} {count}" for name, count in counts.items())
    sys.stdout.write(
        f"fuzz: no find in {time.monotonic() - began_s:.0f} s"
        f" ({time.process_time():.0f} s of processor time): {sum(counts.values())} examples"
        f" ({figures})\n"
    )
    return 0


def _runs_clean(part: Part, seed: int, *, tries_finds: bool = False) -> bool:
    try:
        part.run(seed, part.round, tries_finds=tries_finds)
    except (Exception, EndlessExample):  # noqa: BLE001 - whatever it is, it is a find
        _show("")
        for line in traceback.format_exc().splitlines():
            sys.stderr.write(f"{line[:LINE_LENGTH_MAX]}\n")
        sys.stdout.write(
            f"fuzz: a find in {part.name}, seed {seed}; replay it with\n"
            f"  make fuzz PART={part.name} SEED={seed}\n"
        )
        return False
    return True


def _show(text: str) -> None:
    """Show what is under way on one line, where a person can see it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text:{LINE_WIDTH}}\r")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
