"""The network between processes and namespaces: connections that delay, lose, hang and break.

A wire is one connection. What is put on it arrives in order, after a delay, or not at all:

    slow        the path takes longer
    flaky       now and then the connection is reset, before or after what was just sent arrived,
                or goes silent in one direction
    blocked     a partition: what is sent waits for its end, or is lost for good
    namespace   down: refused, or dark; restarted: whoever speaks of old times is reset

Nothing here knows what is carried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.machine import NOBODY

if TYPE_CHECKING:
    from tests.simulation.machine import Process
    from tests.simulation.namespace import SimNamespace

Action = Callable[[], None]

LATENCY_S: Final = 0.002
JITTER_S: Final = 0.008
IN_ORDER_S: Final = 1e-6
"""Between two arrivals on one wire."""
IDLE_S: Final = 60.0
"""After this time without a sign of life each end gives up; really it is 4 minutes."""
LOST_FOR_GOOD: Final = 0.5
"""Of what is sent into a partition; the rest arrives after it."""


class WireRefused(Exception):
    """Nobody listens there."""


@dataclass
class Weather:
    """What is wrong with one path now."""

    slow_s: float = 0.0
    flaky: float = 0.0
    blocked_until: float = 0.0


def resolve(answer: asyncio.Future[Any], result: object) -> None:
    """Give an answer to whoever still waits for it."""
    if not answer.done():
        answer.set_result(result)


def reject(answer: asyncio.Future[Any], error: Exception) -> None:
    """Give an error to whoever still waits for an answer."""
    if not answer.done():
        answer.set_exception(error)
        # What waits in `asyncio.wait` may be cancelled before it looks at the answer.
        answer.exception()


class Network:
    """All paths, by the name of the process and the name of the namespace."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._weather: dict[tuple[str, str], Weather] = {}

    def weather(self, process: str, side: str) -> Weather:
        """The weather on one path, to read or to change."""
        key = process, side
        found = self._weather.get(key)
        if found is None:
            found = self._weather[key] = Weather()
        return found

    def calm(self) -> None:
        """Fine weather everywhere."""
        self._weather.clear()


class Wire:
    """One connection of one process to one namespace."""

    def __init__(
        self,
        network: Network,
        process: Process,
        namespace: SimNamespace,
        on_broken: Callable[[str], None],
    ) -> None:
        """`on_broken` is told once, at the client's end, and not of what the client itself did."""
        self._network = network
        self._rng = network.rng
        self._loop = process.loop
        self.process = process
        self.namespace = namespace
        self._on_broken = on_broken
        self._generation = -1
        self._last = {"up": 0.0, "down": 0.0}
        self._silent = {"up": False, "down": False}
        self.held = True
        """The client's end is open."""
        self.served = False
        """The namespace's end is open, as far as the namespace knows."""
        self.on_gone: list[Action] = []
        """Called at the namespace's end when it learns that the client has gone."""
        self.hits: list[tuple[float, str]] = []
        """Every fault that this connection has met, with its time; for the checkers."""
        process.wires[self] = None
        if not process.alive:
            self.held = False

    def hit(self, what: str) -> None:
        """Note that a fault has met this connection, or who is at an end of it."""
        self.hits.append((self._loop.time(), what))

    def was_hit(self, since: float, until: float | None) -> bool:
        """Whether a fault met it in a span of time; `until` None: at any time later."""
        return any(since <= at and (until is None or at <= until) for at, _ in self.hits)

    @property
    def weather(self) -> Weather:
        return self._network.weather(self.process.name, self.namespace.name)

    async def open(self) -> None:
        """Connect; WireRefused, or for ever if nobody answers."""
        answer: asyncio.Future[None] = self._loop.create_future()

        def arrived() -> None:
            if answer.done() or not self.held:
                return
            if self.namespace.is_up:
                self._generation = self.namespace.generation
                self.served = True
                self.namespace.wires[self] = None
                self._send("down", lambda: resolve(answer, None))
            elif not self.namespace.is_dark:
                refusal = WireRefused(f"{self.namespace.name} refuses the connection")
                self._send("down", lambda: reject(answer, refusal))

        # The kernel answers for a process that is stopped; only its death is noticed.
        self._send("up", arrived)
        await answer

    def to_namespace(self, action: Action) -> None:
        """Have something done at the namespace's end when it arrives there."""
        if self.held:
            self._send("up", lambda: self._arrived(action))

    def to_client(self, action: Action) -> None:
        """Have something done at the client's end when it arrives there."""
        if self.served:
            self._send("down", lambda: action() if self.held else None)

    def cut(self) -> None:
        """The client lets go; the namespace hears of it, unless the path is blocked."""
        if not self.held:
            return
        self.held = False
        self.process.wires.pop(self, None)
        if not self._silent["up"]:
            when = max(self._loop.time(), self.weather.blocked_until) + LATENCY_S
            self._loop.call_at(when, self.gone, context=NOBODY)

    def gone(self) -> None:
        """The namespace's end closes."""
        if self.served:
            self.served = False
            self.namespace.wires.pop(self, None)
            for action in self.on_gone:
                action()

    def crashed(self, *, dark: bool) -> None:
        """The namespace died: the client is told by its machine, unless that died too."""
        self.hit("the namespace crashed")
        self.gone()
        if not dark:
            self._break_later(f"{self.namespace.name} reset the connection", self._delay_s())

    def _arrived(self, action: Action) -> None:
        namespace = self.namespace
        if self._generation == namespace.generation and self.served:
            namespace.take(self, action)
        elif namespace.is_up or not namespace.is_dark:
            self.hit("the namespace is another by now")
            self._break_later(f"{namespace.name} reset the connection", LATENCY_S)

    def _send(self, direction: str, action: Action) -> None:
        if self._silent[direction]:
            self.hit("a fault had silenced the connection")
            return
        now, weather, rng = self._loop.time(), self.weather, self._rng
        delay_s = self._delay_s()
        when = now + delay_s
        if weather.slow_s:
            self.hit("the path was slow")
        if weather.blocked_until > now:
            self.hit("the path was blocked")
            if rng.random() < LOST_FOR_GOOD:
                self._fall_silent(direction)
                return
            when = weather.blocked_until + delay_s
        when = max(when, self._last[direction] + IN_ORDER_S)
        self._last[direction] = when
        if weather.flaky and rng.random() < weather.flaky and self._flaw(direction, when):
            return
        context = NOBODY if direction == "up" else self.process.arrivals
        self._loop.call_at(when, action, context=context)

    def _flaw(self, direction: str, when: float) -> bool:
        """Something goes wrong with what is being sent; whether it is lost."""
        self.hit("the connection was flaky")
        kind = self._rng.choice(("silent", "reset before", "reset after"))
        self._fall_silent(direction)
        if kind == "silent":
            return self._rng.random() < 0.5
        self._silent["down"] = self._silent["up"] = True
        self._break_later("the connection was reset", when - self._loop.time() + LATENCY_S)
        self._loop.call_at(when + LATENCY_S, self.gone, context=NOBODY)
        return kind == "reset before"

    def _fall_silent(self, direction: str) -> None:
        """Nothing arrives that way any more; in time each end notices."""
        self._silent[direction] = True
        self._break_later("nothing was heard for too long", IDLE_S)
        self._loop.call_later(IDLE_S, self.gone, context=NOBODY)

    def _delay_s(self) -> float:
        slow_s = self.weather.slow_s
        delay_s = LATENCY_S + self._rng.random() * JITTER_S
        return delay_s + self._rng.random() * slow_s if slow_s else delay_s

    def _break_later(self, reason: str, delay_s: float) -> None:
        self._loop.call_later(delay_s, self._break, reason, context=self.process.arrivals)

    def _break(self, reason: str) -> None:
        if self.held:
            self.held = False
            self.process.wires.pop(self, None)
            self._on_broken(reason)
