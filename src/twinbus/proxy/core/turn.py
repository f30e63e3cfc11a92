"""What becomes of one frame of a session: it passes, waits, is changed, withheld or answered."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from twinbus.amqp.frames import encode_frame
from twinbus.amqp.performatives import (
    Attach,
    Detach,
    Disposition,
    Flow,
    Modified,
    Performative,
    Rejected,
    Released,
    Transfer,
)
from twinbus.broker.faults import Direction, Fault, FrameAt, FrameName, Stage
from twinbus.proxy.core.frames import WholeFrame
from twinbus.proxy.core.links import (
    OTHER,
    TO_CLIENT,
    TO_SERVICE,
    LinkFate,
    RelayedLink,
    link_of,
)
from twinbus.proxy.core.numbers import UNSETTLED_MAX, runs_of, shifted
from twinbus.proxy.core.sessions import RelayedSession
from twinbus.proxy.core.state import RelayState, reason_of

LINKS_MAX: Final = 20_000
"""Of one connection: a bound of the memory that a peer can make the proxy use."""

NOT_TAKEN: Final = (Rejected, Released, Modified)
"""States of a delivery that the receiver did not store."""

ANSWERED: Final = ("refuse_send", "throttle")
"""Kinds that withhold a message and answer it."""


class FrameTurn:
    __slots__ = ("_direction", "_frame", "_now_ms", "_session", "_state")

    def __init__(
        self,
        state: RelayState,
        session: RelayedSession,
        direction: Direction,
        frame: WholeFrame,
        now_ms: int,
    ) -> None:
        self._state, self._session, self._direction = state, session, direction
        self._frame, self._now_ms = frame, now_ms

    def take(self, performative: Performative, offset: int) -> None:
        """Perform what the faults say; `offset` is where the payload begins."""
        match performative:
            case Transfer():
                self._transfer(performative, offset)
            case Disposition():
                self._disposition(performative)
            case Flow():
                self._flow(performative)
            case Attach():
                self._attach(performative)
            case Detach():
                self._detached(performative)
            case _:
                self._ended()

    def _write(self, data: bytes, fault: Fault | None = None) -> None:
        """Pass these bytes on, after a delay if that is the fault."""
        delay_ms = fault.delay_ms if fault is not None and fault.kind == "delay" else 0
        channel = self._frame.channel
        self._state.output.put(self._direction, channel, data, self._now_ms, delay_ms)

    def _pass(self, fault: Fault | None = None) -> None:
        self._write(self._frame.raw, fault)

    def _change(
        self, performative: Performative, fault: Fault | None, payload: bytes = b""
    ) -> None:
        self._write(encode_frame(self._frame.channel, performative, payload), fault)

    def _answer(self, performative: Performative) -> None:
        self._state.say(self._session, TO_CLIENT, performative, self._now_ms)

    def _decide(self, stage: Stage | None, link: RelayedLink, frame: FrameName) -> Fault | None:
        at = FrameAt(link.name, self._direction, frame)
        return self._state.decide(stage, link, at, self._now_ms)

    def _is_stopped(self, fault: Fault | None, link: RelayedLink) -> bool:
        """Perform a fault that strikes a whole frame; whether the frame goes no further."""
        match fault:
            case Fault(kind="hang"):
                return True
            case Fault(kind="drop_before_commit"):
                self._state.cut = fault.kind
            case Fault(kind="half_open"):
                self._state.fall_silent(fault)
            case Fault(kind="detach"):
                self._state.detach(self._session, link, fault, self._now_ms)
            case _:
                return False
        return True

    # Links

    def _attach(self, attach: Attach) -> None:
        if self._direction == TO_CLIENT:
            self._attached(attach)
            return
        if self._state.links >= LINKS_MAX:
            self._state.cut = f"a connection has more than {LINKS_MAX} links"
            return
        link = link_of(attach)
        self._know(link, attach.handle)
        self._state.links += 1
        fault = self._decide("attach", link, "attach")
        if fault is not None and fault.kind in ("refuse_attach", "detach"):
            self._refuse(link, attach, fault)
        elif self._is_stopped(fault, link):
            link.fate = LinkFate.UNKNOWN
        else:
            self._session.named[link.name, link.client_sends] = link
            self._pass(fault)

    def _attached(self, attach: Attach) -> None:
        """The service answers an ATTACH."""
        link = self._session.named.pop((attach.name, attach.role), None)
        fault = None
        if link is not None:
            self._know(link, attach.handle)
            fault = self._decide(None, link, "attach")
            if self._is_stopped(fault, link):
                return
        self._pass(fault)

    def _know(self, link: RelayedLink, handle: int) -> None:
        link.handles[self._direction] = handle
        self._session.links[self._direction][handle] = link

    def _refuse(self, link: RelayedLink, asked: Attach, fault: Fault) -> None:
        """Answer the client's ATTACH by one with a null terminus, then a closing DETACH."""
        link.fate = LinkFate.UNKNOWN
        in_use = self._session.links[TO_CLIENT]
        handle = next(number for number in range(len(in_use) + 1) if number not in in_use)
        answer = Attach(
            name=asked.name,
            handle=handle,
            role=not asked.role,
            source=asked.source if link.client_sends else None,
            target=None if link.client_sends else asked.target,
            initial_delivery_count=None if link.client_sends else 0,
        )
        self._answer(answer)
        self._answer(Detach(handle=handle, closed=True, error=reason_of(fault)))

    def _detached(self, detach: Detach) -> None:
        link = self._session.links[self._direction].get(detach.handle)
        if link is None:
            self._pass()
            return
        fault = None
        if link.fate is LinkFate.RELAYED:
            fault = self._decide(None, link, "detach")
        was_relayed = link.fate is LinkFate.RELAYED
        is_stopped = self._is_stopped(fault, link)
        self._forget(link)
        if was_relayed and not is_stopped:
            self._pass(fault)

    def _forget(self, link: RelayedLink) -> None:
        handle = link.handles.pop(self._direction, None)
        if handle is not None:
            self._session.links[self._direction].pop(handle, None)
        if self._direction == TO_SERVICE:
            self._state.links -= 1
            self._session.named.pop((link.name, link.client_sends), None)

    def _ended(self) -> None:
        """One end sent END."""
        self._state.sessions[self._direction].pop(self._frame.channel, None)
        if self._direction == TO_SERVICE:
            self._state.links -= len(self._session.links[TO_SERVICE])
        self._pass()

    # Transfers

    def _transfer(self, transfer: Transfer, offset: int) -> None:
        link = self._session.links[self._direction].get(transfer.handle)
        if link is None:
            self._pass()
            return
        fault = None
        if not link.is_within_delivery:
            fault = self._begin_delivery(link, transfer)
            if self._state.cut is not None or self._direction in self._state.silent:
                return
        link.is_within_delivery = transfer.more and not transfer.aborted
        if link.withholds:
            self._withhold(link, transfer)
            return
        numbers = self._session.numbers[self._direction]
        numbers.passed_frames += 1
        if not numbers.withheld_deliveries or transfer.delivery_id is None:
            self._pass(fault)
            return
        changed = replace(transfer, delivery_id=numbers.for_receiver(transfer.delivery_id))
        self._change(changed, fault, bytes(self._frame.body[offset:]))

    def _begin_delivery(self, link: RelayedLink, transfer: Transfer) -> Fault | None:
        """Decide about the delivery that this transfer begins, and count it."""
        link.delivery_id, link.fault, fault = transfer.delivery_id, None, None
        is_doomed = False
        if link.fate is LinkFate.RELAYED:
            fault = self._decide(link.stage, link, "transfer")
            if fault is not None and fault.kind in (*ANSWERED, "hang"):
                link.fault = fault
            elif fault is not None and fault.kind == "drop_after_commit":
                is_doomed = True
            elif self._is_stopped(fault, link) and link.fate is LinkFate.RELAYED:
                return fault
        numbers = self._session.numbers[self._direction]
        if link.withholds:
            numbers.withheld_deliveries += 1
            link.withheld += 1
        elif not transfer.settled and transfer.delivery_id is not None:
            if len(numbers.by_sender_id) >= UNSETTLED_MAX:
                self._state.cut = f"a session has more than {UNSETTLED_MAX} unsettled deliveries"
            numbers.passed(link, transfer.delivery_id, is_doomed=is_doomed)
        return fault

    def _withhold(self, link: RelayedLink, transfer: Transfer) -> None:
        """Pass no frame of the delivery; answer it when it is complete, unless it hangs."""
        self._session.numbers[self._direction].withheld_frames += 1
        if link.is_within_delivery or self._direction == TO_CLIENT:
            return
        fault = link.fault
        if fault is not None and fault.kind in ANSWERED and link.delivery_id is not None:
            state = Rejected(reason_of(fault))
            if not transfer.settled:
                self._answer(
                    Disposition(role=True, first=link.delivery_id, settled=True, state=state)
                )
        if link.fate is LinkFate.RELAYED:
            self._grant_again(link)

    def _grant_again(self, link: RelayedLink) -> None:
        """Give the client back the credit for a delivery that the service never saw.

        The service's last word, changed to the client's numbers. It sets limits, so it may be
        repeated.
        """
        granted, window = link.credit, self._session.window
        handle = link.handles.get(TO_CLIENT)
        if granted is None or window is None or handle is None:
            return
        numbers = self._session.numbers
        sent = self._session.service_began_at + numbers[TO_CLIENT].passed_frames
        by = numbers[TO_SERVICE].withheld_frames
        flow = Flow(
            next_incoming_id=shifted(window.next_incoming_id, by),
            incoming_window=window.incoming_window,
            next_outgoing_id=shifted(sent, 0) or 0,
            outgoing_window=window.outgoing_window,
            handle=handle,
            delivery_count=shifted(granted.delivery_count, link.withheld),
            link_credit=granted.link_credit,
        )
        self._answer(flow)

    # Flow and disposition

    def _flow(self, flow: Flow) -> None:
        session, direction = self._session, self._direction
        link = None if flow.handle is None else session.links[direction].get(flow.handle)
        fault = None
        if link is not None:
            if link.fate is LinkFate.RELAYED:
                fault = self._decide(None, link, "flow")
            if self._is_stopped(fault, link) or link.fate is not LinkFate.RELAYED:
                return
        if direction == TO_CLIENT:
            session.window = flow
            if link is not None and link.client_sends:
                link.credit = flow
        behind = session.numbers[OTHER[direction]].withheld_frames
        ahead = session.numbers[direction].withheld_frames
        count_by = 0
        if link is not None:
            count_by = -link.withheld if link.is_sent_by(direction) else link.withheld
        if not (behind or ahead or count_by):
            self._pass(fault)
            return
        changed = replace(
            flow,
            next_incoming_id=shifted(flow.next_incoming_id, behind),
            next_outgoing_id=shifted(flow.next_outgoing_id, -ahead) or 0,
            delivery_count=shifted(flow.delivery_count, count_by),
        )
        self._change(changed, fault)

    def _disposition(self, disposition: Disposition) -> None:
        by_receiver = disposition.role
        sending = OTHER[self._direction] if by_receiver else self._direction
        numbers = self._session.numbers[sending]
        last = disposition.first if disposition.last is None else disposition.last
        found = list(numbers.find(disposition.first, last, by_receiver=by_receiver))
        fault = None
        if found:
            fault = self._decide(None, found[0].link, "disposition")
            if self._is_stopped(fault, found[0].link):
                return
        is_taken = by_receiver and not isinstance(disposition.state, NOT_TAKEN)
        if is_taken and any(delivery.is_doomed for delivery in found):
            self._state.cut = "drop_after_commit"
            return
        if disposition.settled:
            for delivery in found:
                numbers.settled(delivery)
        if not numbers.withheld_deliveries:
            self._pass(fault)
            return
        # Each end reads its own ids: those of the end that this frame goes to.
        ids = [one.sender_id if by_receiver else one.receiver_id for one in found]
        for first, end in runs_of(ids):
            self._change(replace(disposition, first=first, last=end), fault)
