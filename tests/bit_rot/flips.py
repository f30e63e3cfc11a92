"""Changes one bit of each byte of a file in turn, and counts what a reader in a process of its own
makes of it.

    noticed    it reports an error, or names what is damaged, and what it still shows is right
    harmless   it shows everything as it was written
    crash      its process died
    wrong      it shows something that was not written, or leaves something out in silence
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

NOTICED, HARMLESS, CRASH, WRONG = "noticed", "harmless", "crash", "wrong"
OUTCOMES = (NOTICED, HARMLESS, CRASH, WRONG)
CHILD_LIMIT_S = 60
"""No promise: a reader that hangs is ended, and counts as a crash."""


@dataclass
class Tally:
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Where a flip had a wrong result, and what it was."""

    def add(self, where: str, outcome: str) -> None:
        kind = outcome.split(":", 1)[0]
        self.counts[kind] += 1
        if kind == WRONG:
            self.wrong.append(f"{where}: {outcome}")

    def line(self, name: str) -> str:
        total = sum(self.counts.values())
        parts = "  ".join(f"{outcome} {self.counts[outcome]:,}" for outcome in OUTCOMES)
        return f"{name}: {total:,} flips  {parts}"


def flipped(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 1 << place % 8
    return bytes(changed)


def flip_all(content: bytes, places: Iterable[int], read: Callable[[bytes], str]) -> Tally:
    """`read` gets the changed file in a forked process; it returns an outcome and why."""
    tally = Tally()
    for place in places:
        tally.add(f"byte {place}", in_fork(partial(read, flipped(content, place))))
    return tally


def in_fork(work: Callable[[], str]) -> str:
    """What the work returns, or that its process died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        faulthandler.disable()
        # What dies here is no news to the tests' own process.
        signal.alarm(CHILD_LIMIT_S)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            os.write(writing, work().encode()[:4_000])
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - it is what the parent wants to know
            os.write(writing, f"{WRONG}: the reader failed: {error!r}".encode()[:4_000])
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return told if status >= 0 else f"{CRASH}: signal {-status}"
