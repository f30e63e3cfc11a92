"""Which side of a relayed receiver has the client's credit: the primary, or its entity's twin.

A client that gives credit for 5 messages must get no more than 5, and with receive-and-delete a
message that is taken from a side and not handed on would be lost. So credit is at one side at a
time: never more than the client's is out, whichever side has messages.

    the primary has the credit; once a second:
        drain the primary          -> it sends what it has, and gives the rest back
        look at the twin           -> credit with drain: what is ready comes, the rest returns
        the primary has the credit again
    a look that used all its credit: both sides are drained by turns until the twin has nothing
    a side is down, or did not answer a drain: the other one has all the credit

Two other rules were considered. Credit for both sides, with the surplus given back, is billed for
each message that is given back, and loses it with receive-and-delete. A fixed share for each side
leaves nothing to share with a credit of 1, which is what the SDK of Python gives.

Flows and drains are not billed. The primary is without credit for two round trips each second. One
side that hangs delays the other by the time that its drain may take. Pure: takes `now`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from twinbus.pairing.core.sides import Side

LOOK_S: Final = 1.0
"""Time between two looks at a twin that had nothing."""

SILENT_S: Final = 15.0
SILENT_MAX_S: Final = 60.0
"""How long a side that did not answer a drain gets no credit; it doubles each time."""


@dataclass(frozen=True, slots=True)
class GrantSide:
    """Let this many deliveries of a side come, those included that were granted before."""

    side: Side
    credit: int


@dataclass(frozen=True, slots=True)
class DrainSide:
    """Let up to `credit` deliveries come that are ready, and take all other credit back."""

    side: Side
    credit: int


@dataclass(frozen=True, slots=True)
class AnswerDrain:
    """Nothing more is ready: answer the client, which asked to drain."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for a change; None: for as long as it takes."""

    until: float | None


Step = GrantSide | DrainSide | AnswerDrain | Wait


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientCredit:
    """What the client's link may get now."""

    credit: int
    window: int
    """How many deliveries may be on their way to it at most."""
    takes_more: bool
    """False while it does not read."""
    is_draining: bool

    @property
    def room(self) -> int:
        return min(self.credit, self.window)


class CreditTurns:
    """Decides about the credit of one receiver."""

    def __init__(self) -> None:
        self._look_at = 0.0
        """When to look at the twin next."""
        self._by_turns: Side | None = None
        """The side that is drained next, while the twin has messages."""
        self._silent_until = dict.fromkeys(Side, 0.0)
        self._silent_s = dict.fromkeys(Side, SILENT_S)
        self._emptied: set[Side] = set()
        """Sides that the drain of the client has emptied."""

    def next(self, now: float, client: ClientCredit, out: Mapping[Side, int]) -> Step:
        """What to do now. `out` has the sides whose links are open, and the credit of each."""
        if not client.is_draining:
            self._emptied.clear()
        usable = [side for side in Side if side in out and now >= self._silent_until[side]]
        for side, credit in out.items():
            # A side that has fallen silent, or the twin after the primary has come back.
            if credit and side not in usable[:1]:
                return DrainSide(side, 0)
        if client.is_draining:
            return self._drain(client, usable)
        if not usable:
            return Wait(self._next_usable(now, out))
        holder, room = usable[0], client.room
        if out[holder] > room:
            return DrainSide(holder, 0)
        if not room or not client.takes_more:
            return Wait(None)
        if len(usable) > 1:
            if self._by_turns is not None:
                return DrainSide(self._by_turns, room)
            if now >= self._look_at:
                return DrainSide(holder, 0) if out[holder] else DrainSide(Side.SECONDARY, room)
        # A frame for each message of a wide window would be too many.
        asked = out[holder]
        if room > asked and (room < client.window or asked <= room // 2):
            return GrantSide(holder, room)
        return Wait(self._look_at if len(usable) > 1 else self._next_usable(now, out))

    def _drain(self, client: ClientCredit, usable: list[Side]) -> Step:
        if client.credit and not client.takes_more:
            return Wait(None)
        for side in usable:
            if side not in self._emptied and client.credit:
                return DrainSide(side, client.room)
        return AnswerDrain()

    def _next_usable(self, now: float, out: Mapping[Side, int]) -> float | None:
        """When a silent side may have credit again; None: no open side is silent."""
        times = [self._silent_until[side] for side in out]
        return min((time for time in times if time > now), default=None)

    def drained(self, drain: DrainSide, brought: int, now: float) -> None:
        """A side has answered a drain, and brought this many deliveries before that."""
        side = drain.side
        self._silent_s[side] = SILENT_S
        is_full = brought >= drain.credit
        if not drain.credit:
            return
        if not is_full:
            self._emptied.add(side)
        if self._by_turns is not None:
            self._by_turns = side.other
        if side is Side.SECONDARY:
            self._look_at = now + LOOK_S
            self._by_turns = Side.PRIMARY if is_full else None

    def not_answered(self, side: Side, now: float) -> None:
        """A side did not answer a drain, so the other one gets the credit."""
        self._silent_until[side] = now + self._silent_s[side]
        self._silent_s[side] = min(2 * self._silent_s[side], SILENT_MAX_S)
        self._by_turns = None

    def answers_again(self, side: Side) -> None:
        """A side that was taken as silent has answered after all."""
        self._silent_until[side], self._silent_s[side] = 0.0, SILENT_S
