"""What all frames of one relayed connection share: the faults, the output, and how it ends."""

from __future__ import annotations

from collections.abc import Callable

from twinbus.amqp.frames import encode_frame
from twinbus.amqp.performatives import Detach, Error, Performative
from twinbus.amqp.types import Symbol
from twinbus.broker.faults import Direction, Fault, FaultPlan, FrameAt, Stage
from twinbus.proxy.core.held import HeldOutput
from twinbus.proxy.core.links import TO_CLIENT, TO_SERVICE, LinkFate, RelayedLink
from twinbus.proxy.core.sessions import RelayedSession
from twinbus.wording import visible


class RelayState:
    def __init__(self, plan: FaultPlan, note: Callable[[str], None]) -> None:
        self._plan = plan
        self._note = note
        self.output = HeldOutput()
        self.cut: str | None = None
        self.silent: set[Direction] = set()
        self.sessions: dict[Direction, dict[int, RelayedSession]] = {TO_SERVICE: {}, TO_CLIENT: {}}
        """By the channels of each direction."""
        self.links = 0
        """Links that the client attached and did not detach."""

    def decide(
        self, stage: Stage | None, link: RelayedLink, at: FrameAt, now_ms: int
    ) -> Fault | None:
        """The fault that strikes here, if any; it is noted."""
        if not self._plan:
            return None
        fault = self._plan.decide(stage, link.address, now_ms, at)
        if fault is not None:
            where = visible(link.address) or "a link without an address"
            what = f"{at.frame} {at.direction}" if at.frame else "an open link"
            self._note(f"{where}: {fault.kind}, {what.replace('_', ' ')}")
        return fault

    def fall_silent(self, fault: Fault) -> None:
        self.silent |= {TO_SERVICE, TO_CLIENT} if fault.direction is None else {fault.direction}

    def say(
        self, session: RelayedSession, direction: Direction, performative: Performative, now_ms: int
    ) -> None:
        """Write a frame of the proxy's own into a session."""
        channel = session.channels.get(direction)
        if channel is not None:
            self.output.put(direction, channel, encode_frame(channel, performative), now_ms)

    def detach(self, session: RelayedSession, link: RelayedLink, fault: Fault, now_ms: int) -> None:
        """Detach both ends of a link; the client is told why."""
        link.fate = LinkFate.DETACHED
        for direction in (TO_CLIENT, TO_SERVICE):
            # Each end knows the link by the handle in the frames that it gets.
            handle = link.handles.get(direction)
            if handle is not None:
                error = reason_of(fault) if direction == TO_CLIENT else None
                detach = Detach(handle=handle, closed=True, error=error)
                self.say(session, direction, detach, now_ms)


def reason_of(fault: Fault) -> Error:
    return Error(condition=Symbol(fault.condition), description=fault.description)
