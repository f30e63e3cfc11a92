"""Two explored programs that want one lease: the lock of a session in the secondary.

How long a lease is valid, and how long a takeover waits, is the shipped core's; the requests are
made as the shell makes them (client/session_locks.py). An answer comes at once or never: a late
one counts for less long. Both programs have asked before the world begins, so that the
one without the lease knows that it has to wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tests.exploration.explorer import Violation
from twinbus.client.lock_validity import SILENCE_S, LockValidity, handover_s

STEP_S: Final = 8.0
LOCK_S: Final = 40.0
"""With it, all waits are whole steps."""


@dataclass(frozen=True)
class LeaseSettings:
    cuts: int = 1
    """A program that does not reach the secondary; one at a time."""


@dataclass(eq=False)
class Program:
    name: str
    validity: LockValidity = field(default_factory=LockValidity)
    heard_at: float = float("-inf")
    """The last sign of life of the secondary."""
    announce_at: float | None = None
    """When the granted lease may be used; None: it is not granted."""
    is_announced: bool = False
    is_dropped: bool = False
    """The secondary has ended its connection, and it does not know that yet."""

    def holds(self, now: float) -> bool:
        is_silent = now >= self.heard_at + SILENCE_S
        return self.is_announced and not is_silent and self.validity.holds(now)

    def lose(self) -> None:
        self.validity.lost()
        # The next grant sets these again.
        self.validity.renew_at = self.heard_at = float("-inf")
        self.announce_at, self.is_announced, self.is_dropped = None, False, False


class Rivals:
    def __init__(self, settings: LeaseSettings) -> None:
        self.now = 1_000.0
        self.left = settings.cuts
        self.cut: str | None = None
        self.programs = {name: Program(name) for name in ("one", "two")}
        self.owner: str | None = None
        """Whose lock it is, as the secondary knows it."""
        self.locked_until = 0.0
        self._grant(self.programs["one"])
        self.programs["one"].is_announced = True

    def ordered_queues(self) -> list[str]:
        """The programs, those that have the lock or are cut off first."""
        return sorted(self.programs, key=lambda name: (name != self.owner, name != self.cut))

    # Actions

    def actions(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for program in self.programs.values():
            found += [("", name, program.name) for name in self._of_program(program)]
        if self.cut is not None:
            found.append(("", "mend"))
            if self.owner == self.cut:
                found.append(("", "drop"))
        # The time of a program that is cut off is what matters; the others need no more of it.
        found.append(("", "pass_time"))
        if self.cut is None and self.left:
            found += [("FAULT", "part", name) for name in self.programs]
        return found

    def _of_program(self, program: Program) -> list[str]:
        found = []
        if program.announce_at is None:
            found += ["ask"] if self.cut != program.name and self.owner is None else []
            return found
        if self.cut != program.name:
            found += ["prove"]
            found += ["renew"] if self.now >= program.validity.renew_at else []
        if self.now >= program.announce_at and not program.is_announced:
            found.append("announce")
        if self.now >= program.validity.ends_at:
            found.append("give_up")
        return found

    def perform(self, action: tuple[Any, ...]) -> None:
        _, name, *given = action
        getattr(self, f"_{name}")(*(self.programs.get(one, one) for one in given))

    def _grant(self, program: Program) -> None:
        self.owner, self.locked_until = program.name, self.now + LOCK_S
        program.validity.granted(self.now, LOCK_S)
        program.heard_at = self.now
        program.announce_at = self.now

    def _ask(self, program: Program) -> None:
        self._grant(program)
        program.announce_at = self.now + handover_s(LOCK_S)

    def _prove(self, program: Program) -> None:
        """A sign of life of the connection: it says nothing about the lock."""
        if program.is_dropped:
            self._lose(program)
        else:
            program.heard_at = self.now

    def _renew(self, program: Program) -> None:
        # A lease that lapsed is lost even if its lock was renewed.
        if self.owner != program.name or not program.validity.holds(self.now):
            self._lose(program)
            return
        self.locked_until = self.now + LOCK_S
        program.validity.granted(self.now, LOCK_S)

    def _announce(self, program: Program) -> None:
        program.is_announced = True

    def _give_up(self, program: Program) -> None:
        self._lose(program)

    def _lose(self, program: Program) -> None:
        program.lose()
        if self.owner == program.name and self.cut != program.name:
            self._free()

    def _drop(self) -> None:
        """The secondary gives up a connection that it does not hear from, and frees its lock."""
        assert self.owner is not None
        self.programs[self.owner].is_dropped = True
        self._free()

    def _free(self) -> None:
        self.owner, self.locked_until = None, 0.0

    def _mend(self) -> None:
        self.cut = None

    def _part(self, program: Program) -> None:
        self.left -= 1
        self.cut = program.name

    def _pass_time(self) -> None:
        self.now += STEP_S
        if self.now >= self.locked_until:
            self._free()

    # What must hold

    @property
    def is_home(self) -> bool:
        """One of them works, and nothing is broken."""
        return self.cut is None and any(one.holds(self.now) for one in self.programs.values())

    def check(self) -> None:
        holders = [name for name, one in self.programs.items() if one.holds(self.now)]
        if len(holders) > 1:
            raise Violation("holders: both programs act on the lease")
