"""Two explored programs that want one lease: the lock of a session in the secondary.

How long a lease is valid, what its marks say and how long a new holder waits is the shipped core's;
the requests are made as the shell makes them (client/session_locks.py). A program may stop, be
killed or be cut off between any two steps, and a program that starts knows nothing. An answer comes
at once or never: a late one counts for less long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tests.exploration.explorer import Violation
from twinbus.client.lock_validity import (
    SILENCE_S,
    STOPPED_MARK,
    LockValidity,
    acting_mark,
    wait_s,
)

STEP_S: Final = 8.0
LOCK_S: Final = 40.0
"""With it, all waits are whole steps."""

DEAD: Final = "a program that is dead"
STOPPED: Final = "stopped"


@dataclass(frozen=True)
class LeaseSettings:
    cuts: int = 1
    """A program that does not reach the secondary; one at a time."""
    kills: int = 0


@dataclass(eq=False)
class Program:
    name: str
    validity: LockValidity = field(default_factory=LockValidity)
    heard_at: float = float("-inf")
    """The last sign of life of the secondary."""
    phase: str = ""
    """"", then "granted", "waits" once it has read the mark, "acts", "stops"."""
    announce_at: float | None = None
    """When the granted lease may be used."""
    is_marked: bool = False
    is_dropped: bool = False
    """The secondary has ended its connection, and it does not know that yet."""

    def holds(self, now: float) -> bool:
        is_silent = now >= self.heard_at + SILENCE_S
        return self.phase == "acts" and not is_silent and self.validity.holds(now)

    def forget(self) -> None:
        self.validity.lost()
        # The next grant sets these again.
        self.validity.renew_at = self.heard_at = float("-inf")
        self.phase, self.announce_at, self.is_marked, self.is_dropped = "", None, False, False


class Rivals:
    def __init__(self, settings: LeaseSettings) -> None:
        self.now = 1_000.0
        self.left, self.kills = settings.cuts, settings.kills
        self.cut: str | None = None
        self.programs = {name: Program(name) for name in ("one", "two")}
        self.owner: str | None = None
        """Whose lock it is, as the secondary knows it."""
        self.locked_until = 0.0
        self.mark: str | None = None
        """What the session's state says: who acts, or STOPPED."""

    def ordered_queues(self) -> list[str]:
        """The programs, those that have the lock or are cut off first."""
        return sorted(self.programs, key=lambda name: (name != self.owner, name != self.cut))

    # Actions

    def actions(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for program in self.programs.values():
            found += [("", name, program.name) for name in self._of_program(program)]
            if self.kills and program.phase:
                found.append(("FAULT", "kill", program.name))
        if self.cut is not None:
            found.append(("", "mend"))
        if self.owner is not None and self.owner in (self.cut, DEAD):
            found.append(("", "drop"))
        # The time of a program that is cut off is what matters; the others need no more of it.
        found.append(("", "pass_time"))
        if self.cut is None and self.left:
            found += [("FAULT", "part", name) for name in self.programs]
        return found

    def _of_program(self, program: Program) -> list[str]:
        reaches = self.cut != program.name
        if not program.phase:
            return ["ask"] if reaches and self.owner is None else []
        if program.phase == "stops":
            return ["say_stopped", "leave"] if reaches else ["leave"]
        found = []
        if reaches:
            is_due = self.owner != program.name and self.now >= program.validity.renew_at
            found += ["learn"] if program.is_dropped or is_due else []
            found += ["read"] if program.phase == "granted" else []
        if program.phase == "waits" and self.now >= (program.announce_at or 0.0):
            if program.is_marked:
                found.append("announce")
            elif reaches:
                found += ["mark", "mark_unanswered"]
        found += ["stop"] if program.phase == "acts" else []
        found += ["give_up"] if self.now >= program.validity.ends_at else []
        return found

    def perform(self, action: tuple[Any, ...]) -> None:
        _, name, *given = action
        getattr(self, f"_{name}")(*(self.programs.get(one, one) for one in given))

    def _ask(self, program: Program) -> None:
        self.owner, self.locked_until = program.name, self.now + LOCK_S
        program.validity.granted(self.now, LOCK_S)
        program.heard_at = self.now
        program.phase = "granted"

    def _read(self, program: Program) -> None:
        if self.owner != program.name:
            self._lose(program)
            return
        own = acting_mark(program.name)
        mark = {None: None, STOPPED: STOPPED_MARK}.get(self.mark, acting_mark(str(self.mark)))
        program.announce_at = self.now + wait_s(mark, own, LOCK_S)
        program.phase, program.is_marked = "waits", self.mark == program.name

    def _mark(self, program: Program) -> None:
        if self.owner != program.name or not program.validity.holds(self.now):
            self._lose(program)
            return
        self.mark, program.is_marked = program.name, True

    def _mark_unanswered(self, program: Program) -> None:
        """It is stored, and the connection breaks before the answer."""
        self._mark(program)
        self._lose(program)

    def _announce(self, program: Program) -> None:
        program.phase = "acts"

    def _hear(self, program: Program) -> None:
        """A sign of life of the connection says nothing about the lock; a renewal does."""
        program.heard_at = self.now
        if self.now < program.validity.renew_at:
            return
        # A lease that lapsed is lost even if its lock was renewed.
        if not program.validity.holds(self.now):
            self._lose(program)
        # Whose lock is lost may be late to hear of it: that is an action of its own.
        elif self.owner == program.name:
            self.locked_until = self.now + LOCK_S
            program.validity.granted(self.now, LOCK_S)

    def _learn(self, program: Program) -> None:
        """Its connection or its lock is lost, and it hears of that."""
        self._lose(program)

    def _give_up(self, program: Program) -> None:
        self._lose(program)

    def _lose(self, program: Program) -> None:
        program.forget()
        if self.owner == program.name and self.cut != program.name:
            self._free()

    # Its end

    def _stop(self, program: Program) -> None:
        """It acts no more, and everything it did has ended."""
        program.phase = "stops"

    def _say_stopped(self, program: Program) -> None:
        if self.owner == program.name:
            self.mark = STOPPED
        self._leave(program)

    def _kill(self, program: Program) -> None:
        self.kills -= 1
        self._leave(program)

    def _leave(self, program: Program) -> None:
        """A process ends; the next one is another program, of which this only keeps the name."""
        program.forget()
        if self.mark == program.name:
            self.mark = DEAD
        if self.owner == program.name:
            if self.cut == program.name:
                self.owner = DEAD
            else:
                self._free()

    # The secondary, the network and time

    def _drop(self) -> None:
        """The secondary gives up a connection that it does not hear from, and frees its lock."""
        if self.owner in self.programs:
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
        for program in self.programs.values():
            if program.phase and self.cut != program.name and not program.is_dropped:
                self._hear(program)
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
