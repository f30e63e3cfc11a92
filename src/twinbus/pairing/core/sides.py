"""The two sides of a pair: open, closed or faulted, and what one end means for the other.

    OPEN --close--> CLOSED
      '----fault--> FAULTED <--5 seconds after the other side's end, where the syphon runs--'

Only a person's `close` and `fault` end a side; an unreachable or refusing namespace never does. A
side that ended keeps its state: a fault does not change a closed side, and a close only releases
what a faulted side holds open.

Pure: the shell calls `handle` with the time of each event, performs the returned actions in order,
and arms one timer for `timer_at`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from twinbus.errors import PairClosedError, PairFaultedError, PairingError, error_text
from twinbus.pairing.core.failover import TimerFired
from twinbus.status.document import SideState

FOLLOW_S: Final = 5.0
"""How long the other side may stay open after one side's end, where the syphon runs."""


class Side(StrEnum):
    """One of the two namespaces of a pair."""

    PRIMARY = "primary"
    SECONDARY = "secondary"

    @property
    def other(self) -> Side:
        return Side.SECONDARY if self is Side.PRIMARY else Side.PRIMARY


@dataclass(frozen=True, slots=True)
class CloseSide:
    """A person closes one side."""

    side: Side


@dataclass(frozen=True, slots=True)
class FaultSide:
    """A person declares that one side must not be used any more."""

    side: Side
    error: BaseException


@dataclass(frozen=True, slots=True)
class ClosePair:
    """A person closes both sides at once."""


Event = CloseSide | FaultSide | ClosePair | TimerFired


@dataclass(frozen=True, slots=True)
class ReleaseSide:
    """Close what this pair holds open on a side. Comes once for each side."""

    side: Side


@dataclass(frozen=True, slots=True)
class SideChange:
    """The end of one side, for logs and listeners; nothing else to perform."""

    announces: ClassVar[bool] = True
    side: Side
    before: SideState
    after: SideState
    at: float
    reason: str


Action = ReleaseSide | SideChange

NOTHING: Final[tuple[Action, ...]] = ()


class PairSides:
    def __init__(self, *, syphon: bool) -> None:
        """`syphon`: it runs here, so a side that does not follow is faulted."""
        self._syphon = syphon
        self._states = dict.fromkeys(Side, SideState.OPEN)
        self._reasons = dict.fromkeys(Side, "")
        self._error: BaseException | None = None
        """The error of the first fault."""
        self._faulted: Side | None = None
        """The side whose fault every later call raises."""
        self._is_pair_closed = False
        self.timer_at: float | None = None
        """When a side that is still open will be faulted; None: never."""

    def __repr__(self) -> str:
        states = ", ".join(f"{side}={state}" for side, state in self._states.items())
        return f"PairSides({states}, timer_at={self.timer_at})"

    def state(self, side: Side) -> SideState:
        return self._states[side]

    def reason(self, side: Side) -> str:
        """Why the side ended; empty while it is open."""
        return self._reasons[side]

    def handle(self, event: Event, now: float) -> Sequence[Action]:
        """Take one event at time `now`; return what the shell must do, in order."""
        match event:
            case CloseSide(side):
                return self._end(side, SideState.CLOSED, "closed by the application", now)
            case FaultSide(side, error):
                if self._states[side] is SideState.OPEN and self._error is None:
                    self._error = error
                if self._states[side] is SideState.OPEN and side is Side.PRIMARY:
                    self._faulted = side
                reason = " ".join(error_text(error).split()).removesuffix(":")
                return self._end(side, SideState.FAULTED, reason, now)
            case ClosePair():
                if self._states[Side.PRIMARY] is SideState.OPEN:
                    self._is_pair_closed = True
                reason = "the pair was closed"
                first = self._end(Side.PRIMARY, SideState.CLOSED, reason, now)
                return (*first, *self._end(Side.SECONDARY, SideState.CLOSED, reason, now))
            case TimerFired():
                return self._fault_the_other(now)

    @property
    def fault(self) -> str | None:
        """Why every later call raises PairFaultedError; None: it does not."""
        if self._faulted is None:
            return None
        return f"the {self._faulted} side was faulted: {self._reasons[self._faulted]}"

    def refusal(self) -> PairingError | None:
        """A new error for a call that needs the primary; None: the call may go on."""
        # A secondary that was faulted by hand leaves the primary usable, or closed as it is.
        if self.fault is not None:
            error = PairFaultedError(
                f"{self.fault}; close the pair and make a new one with pair_namespaces"
            )
            error.__cause__ = self._error
            return error
        if self._is_pair_closed:
            return PairClosedError("the pair was closed; make a new one with pair_namespaces")
        if self._states[Side.PRIMARY] is SideState.CLOSED:
            return PairClosedError(
                "the primary side of the pair was closed; close the pair and make a new one with"
                " pair_namespaces"
            )
        return None

    def _end(self, side: Side, state: SideState, reason: str, now: float) -> Sequence[Action]:
        """Change a side's state. Nothing else writes it, so that no timer outlives its reason."""
        before = self._states[side]
        if before is not SideState.OPEN:
            return NOTHING
        self._states[side] = state
        self._reasons[side] = reason
        is_alone = self._states[side.other] is SideState.OPEN
        self.timer_at = now + FOLLOW_S if is_alone and self._syphon else None
        return ReleaseSide(side), SideChange(side, before, state, now, reason)

    def _fault_the_other(self, now: float) -> Sequence[Action]:
        if self.timer_at is None or now < self.timer_at:
            # The other side followed before the timer's event came in.
            return NOTHING
        ended = next(s for s in Side if self._states[s] is not SideState.OPEN)
        how = self._states[ended]
        why = f" ({self._reasons[ended]})" if how is SideState.FAULTED else ""
        reason = (
            f"the {ended} was {how}{why} and the {ended.other} did not follow within {FOLLOW_S:g} s"
        )
        self._faulted = ended.other
        return self._end(ended.other, SideState.FAULTED, reason, now)
