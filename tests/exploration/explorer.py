"""Visits every state that a world can reach, breadth-first, and checks each.

A state is a pickled world. A step is one action on a copy of it; where the action meets a question
with several answers (was it stored before the connection broke?), each answer is a step of its own.
States that differ only in the time of day, in the names of equal things or in what nothing depends
on are one (`tests.exploration.states`).
"""

from __future__ import annotations

import pickle
import time
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tests.exploration.states import fingerprint


class Violation(Exception):
    """Something that must never happen has happened."""


class Questions:
    """Answers the questions of one step: first by a script, then with the first answer."""

    def __init__(self) -> None:
        self.script: list[int] = []
        self.asked: list[tuple[int, int]] = []
        """The answer to each question so far, and how many answers it has."""

    def begin(self, script: list[int]) -> None:
        self.script, self.asked = script, []

    def ask(self, answers: int) -> int:
        """Return one of the answers, as a number from 0 on."""
        given = self.script[len(self.asked)] if len(self.asked) < len(self.script) else 0
        self.asked.append((given, answers))
        return given

    def next_script(self) -> list[int] | None:
        """Return the script of the next step; None: every answer was given."""
        asked = list(self.asked)
        while asked:
            given, answers = asked.pop()
            if given + 1 < answers:
                return [*(before for before, _ in asked), given + 1]
        return None


QUESTIONS: Final = Questions()
"""Outside the worlds, because it belongs to a step and not to a state."""


class Explorable(Protocol):
    now: float

    def actions(self) -> list[tuple[Any, ...]]: ...

    def perform(self, action: tuple[Any, ...]) -> None: ...

    def check(self) -> None:
        """Raise Violation if something does not hold in this state."""

    @property
    def is_home(self) -> bool: ...


@dataclass
class Exploration:
    """What was found of one world."""

    states: int = 0
    steps: int = 0
    seconds: float = 0.0
    depth: int = 0
    is_complete: bool = False
    """Every state was visited."""
    home: int = 0
    """States in which everything is home."""
    violation: str = ""
    path: list[str] = field(default_factory=list)
    """The actions that lead to the violation."""

    def __str__(self) -> str:
        whole = "all" if self.is_complete else "the first"
        return (
            f"{whole} {self.states:,} states, {self.steps:,} steps, depth {self.depth},"
            f" {self.home:,} states at home, {self.seconds:.1f} s of processor time"
        )

    def story(self) -> str:
        return "\n".join([*self.path, self.violation])


class Explorer:
    """One breadth-first search."""

    def __init__(self, start: Explorable, *, states_max: int = 1 << 30) -> None:
        self._start = start
        self._states_max = states_max
        self._numbers: dict[bytes, int] = {}
        self._parents = array("l")
        self._by: list[str] = []
        self._froms, self._tos = array("l"), array("l")
        """The steps that are no faults."""
        self._home: list[int] = []
        self._names: dict[str, str] = {}
        self._queue: deque[tuple[int, int, bytes]] = deque()
        self.found = Exploration()

    def run(self, *, comes_home: bool = True) -> Exploration:
        """Visit the states; `comes_home`: from each of them everything can come home."""
        found, began = self.found, time.process_time()
        try:
            self._start.check()
            self._enter(self._start, -1, "", 0)
            while self._queue and found.states < self._states_max:
                self._expand(*self._queue.popleft())
            found.is_complete = not self._queue
            if comes_home and found.is_complete:
                self._check_home()
        except Violation as violation:
            found.violation = str(violation)
        found.seconds = time.process_time() - began
        return found

    def _enter(self, world: Explorable, parent: int, by: str, depth: int) -> int:
        key = fingerprint(world)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            self._parents.append(parent)
            self._by.append(self._names.setdefault(by, by))
            self._queue.append((number, depth, pickle.dumps(world, pickle.HIGHEST_PROTOCOL)))
            self.found.states, self.found.depth = number + 1, depth
            if world.is_home:
                self._home.append(number)
                self.found.home += 1
        return number

    def _expand(self, number: int, depth: int, state: bytes) -> None:
        first = pickle.loads(state)
        for action in first.actions():
            script: list[int] | None = []
            while script is not None:
                world, first = first or pickle.loads(state), None
                QUESTIONS.begin(script)
                by = " ".join(map(str, action))
                try:
                    world.perform(action)
                    world.check()
                except (Violation, AssertionError, KeyError, ValueError) as error:
                    self._tell(number, by, error)
                self.found.steps += 1
                script = QUESTIONS.next_script()
                after = self._enter(world, number, by, depth + 1)
                if not action[0].startswith("FAULT"):
                    self._froms.append(number)
                    self._tos.append(after)

    def _tell(self, number: int, by: str, error: Exception) -> None:
        self.found.path = [*self._path(number), by]
        kind = "" if isinstance(error, Violation) else f"the core itself: {error!r} "
        raise Violation(f"{kind}{error}") from error

    def _path(self, number: int) -> list[str]:
        path = []
        while number > 0:
            path.append(self._by[number])
            number = self._parents[number]
        return path[::-1]

    def _check_home(self) -> None:
        """From every state, actions that are no faults lead to one in which everything is home."""
        before: dict[int, list[int]] = {}
        for start, end in zip(self._froms, self._tos, strict=True):
            before.setdefault(end, []).append(start)
        reached = set(self._home)
        waiting = deque(self._home)
        while waiting:
            for number in before.get(waiting.popleft(), ()):
                if number not in reached:
                    reached.add(number)
                    waiting.append(number)
        stuck = next((n for n in range(self.found.states) if n not in reached), None)
        if stuck is not None:
            self.found.path = self._path(stuck)
            raise Violation("home: from here nothing brings everything home")
