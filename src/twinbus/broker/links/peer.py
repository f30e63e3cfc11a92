"""One AMQP client of a broker or gateway: its connection, links, and the grants of its tokens.

An `asyncio.Protocol` around the sans-IO connection. It acts on each event at once, but sends
nothing by itself: the server collects the output of all peers at the end of the tick, and it is
written when that tick's changes are on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from twinbus.amqp.budgets import BudgetExceeded
from twinbus.amqp.connection import Connection, ConnectionPhase
from twinbus.amqp.events import (
    Attached,
    Closed,
    CreditChanged,
    DeliveryArrived,
    DeliveryRun,
    DeliveryTooLarge,
    Detached,
    Disposed,
    Ended,
    Event,
    Opened,
)
from twinbus.amqp.link import Link, LinkState, ReceiverLink, SenderLink
from twinbus.broker.access import CUT_OFF_S
from twinbus.broker.budgets import UNREAD_BYTES_EACH, ClientBudgets
from twinbus.broker.links.cbs import log_in, put_token
from twinbus.broker.links.client_limits import (
    BLOCKED_BYTES_MAX,
    LINGER_S,
    OUTPUT_BYTES_MAX,
    UNWRITTEN_BYTES_MAX,
    BackPressure,
    ExpiryTimer,
    Probation,
)
from twinbus.broker.links.context import (
    CBS,
    LinkOpener,
    LinkOwner,
    PeerContext,
    ReplyLink,
    ReplyLinks,
    owner_of,
)
from twinbus.broker.links.requests import RequestLink, require_address
from twinbus.broker.links.turns import Input, Steps
from twinbus.broker.refusals import (
    EntityNotFound,
    LinkExpired,
    NotAllowed,
    QuotaExceeded,
    Refusal,
    ServerBusy,
    Unauthorized,
)
from twinbus.broker.sas import ConnectionGrants, Grant, covers
from twinbus.namespace.address import is_loopback
from twinbus.servicebus import conditions
from twinbus.servicebus.names import MANAGEMENT_SUFFIX, entity_address
from twinbus.wording import visible

log = logging.getLogger("twinbus.broker")

REASON_MAX = 300
"""Characters of a reason of the client that the log shows."""

SLICES_TOGETHER: Final = 8
"""Slices of one client that are answered together, about two milliseconds of work, if its input
takes so many. A commit for each would have its neighbours wait for the disk after each."""


class PeerServer(PeerContext, Protocol):
    """The broker or gateway that a client is connected to."""

    peers: set[Peer]

    def collect(self, peer: Peer) -> None:
        """Collect this peer's output at the end of the tick."""


class Peer(asyncio.Protocol):
    def __init__(self, context: PeerServer, opener: LinkOpener) -> None:
        self._context = context
        self._opener = opener
        self.budgets = ClientBudgets(context.admission.budgets)
        self.grants = ConnectionGrants(self.budgets.held_bytes)
        self.connection = Connection(
            context.name,
            server=True,
            sasl=True,
            idle_timeout_ms=context.profile.connection_idle_ms,
            handle_max=context.profile.handle_max,
            budgets=self.budgets,
        )
        self.replies = ReplyLinks(self.budgets.held_bytes)
        self._receivers: dict[str, LinkOwner] = {}
        """By the names of their links: a request names the link whose locks it is about."""
        self.probation: Probation | None = None
        """Present from the first byte to the first valid token, or to the OPEN after a login."""
        self._pressure = BackPressure()
        self._input = Input(context.turns, self.budgets.held_bytes, self._handle_read)
        self._slices = 0
        self._turn_ms = 0
        """When the slice began."""
        self._is_lost = False
        """The connection is gone, and what it brought is not handled yet."""
        self._unread = context.admission.budgets.unread
        self._unread_bytes = 0
        self._is_closed_unread = False
        self._host = ""
        self.address = "?"
        self._transport: asyncio.Transport | None = None
        self._doomed = False
        self._hanging = False
        self._said_close = False
        self._timer: asyncio.TimerHandle | None = None
        self._cutting: asyncio.TimerHandle | None = None
        self._expiry = ExpiryTimer(context, self._end_expired)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._pressure.made(self._transport)
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if isinstance(peer, tuple) else ""
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a local client"
        self._context.peers.add(self)
        context = self._context
        probation = self.probation = Probation(
            self.connection, context.admission, self._host, context.loop, self._give_up
        )
        is_private = is_loopback(self._host) or transport.get_extra_info("ssl_object") is not None
        if is_private and context.policy.takes_keys:
            self.connection.login = partial(log_in, context.policy, self.grants)
        if self._hanging:
            self._transport.abort()
            return
        fault = self._context.faults.decide("connect", "", self._context.now_ms())
        if fault is not None and fault.kind == "hang":
            self._hanging = True
        elif fault is not None:
            self._transport.pause_reading()
            self.later(fault.delay_ms, self._transport.resume_reading)
            self.later(fault.delay_ms, probation.start_clock)
        else:
            probation.start_clock()

    def data_received(self, data: bytes) -> None:
        if self._hanging or self._said_close:
            return
        if self.probation is not None and not self.probation.takes(len(data)):
            return
        self._input.add(data)
        if not self._pressure.has_unread and self._work():
            self._pressure.has_unread = True
            self._context.turns.wait(self._go_on)
            self._pressure.apply()
        if self._pressure.has_unread:
            self._hold(len(data))
        else:
            self.touch()
        self._pressure.received(len(data))

    def _hold(self, size_bytes: int) -> None:
        try:
            self._input.hold(size_bytes)
        except BudgetExceeded as error:
            self._input.drop()
            self._give_up(error.condition, str(error))

    def _go_on(self) -> bool:
        """Handle more of what came; false when nothing is left."""
        is_over = self._is_lost and self.connection.phase is not ConnectionPhase.OPEN
        if self._hanging or self._said_close or is_over:
            self._input.drop()
        try:
            is_left = self._work()
        except Exception:
            # As asyncio does for an error in `data_received`.
            log.exception("%s: connection from %s failed", self._context.name, self.address)
            self.drop()
            is_left = False
        self._slices += 1
        if not is_left or (self._slices % SLICES_TOGETHER == 0 and self._input.has_changed):
            self._input.has_changed = False
            self.touch()
        if not is_left:
            self._pressure.has_unread = False
            self._pressure.apply()
            if self._is_lost:
                self._leave()
        return is_left

    def _work(self) -> bool:
        """Handle what came for one slice; true if more is left."""
        self._turn_ms = self._context.now_ms()
        output = self.connection.output
        was_blocked = output.blocked_bytes >= BLOCKED_BYTES_MAX
        try:
            is_left = self._input.work()
        except BudgetExceeded as error:
            self._give_up(error.condition, str(error))
            is_left = False
        if was_blocked and output.blocked_bytes < BLOCKED_BYTES_MAX:
            self._deliver_again()
        return is_left

    def _handle_read(self, data: bytes) -> Steps:
        is_first = True
        for events in self.connection.receive(data, self._turn_ms):
            if not events:
                yield None
            for part in _parts(events):
                if not is_first:
                    yield None
                is_first = False
                rest = self._handle(part, self._turn_ms)
                if rest is not None:
                    yield from rest

    def _handle(self, part: Event | list[DeliveryArrived], now_ms: int) -> Steps | None:
        if type(part) is list:
            return owner_of(part[0].link).take_all(part, now_ms)
        if type(part) is DeliveryRun:
            return owner_of(part.link).take_run(part, now_ms)
        assert not isinstance(part, list)
        self._act(part, now_ms)
        return None

    def overhead_received(self, size_bytes: int) -> None:
        """Count bytes of a WebSocket that are not AMQP: a stranger may send few of either."""
        if self.probation is not None and not self._said_close:
            self.probation.takes(size_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client's links, once what they brought is handled."""
        self._transport = None
        if self._pressure.has_unread and not self._hanging:
            self._is_lost = True
        else:
            self._leave()

    def _leave(self) -> None:
        """Close the client's links; its message locks stay until they expire."""
        self._is_lost = False
        self._input.drop()
        self._context.peers.discard(self)
        self.trust()
        self._context.admission.leave(self._host, trusted=True)
        self._expiry.cancel()
        for timer in (self._timer, self._cutting):
            if timer is not None:
                timer.cancel()
        self._close_owners(self._context.now_ms())
        self._opener.disconnected(self)
        self.budgets.close()
        self._unread.count(self, 0)
        self._context.wake()
        log.info("%s: connection from %s closed", self._context.name, self.address)

    def pause_writing(self) -> None:
        """Stop reading: each frame of a client that reads no answers would add to them."""
        self._pressure.is_writable = False
        self._pressure.apply()

    def resume_writing(self) -> None:
        self._pressure.is_writable = True
        self._pressure.apply()
        self.connection.postpone_idle(self._context.now_ms())
        self._count_unread()
        self._deliver_again()

    def _deliver_again(self) -> None:
        for link in self._links():
            owner_of(link).may_write_again()

    # Calls of links

    @property
    def container_id(self) -> str:
        """The name that the client gave itself: foreign text of any length."""
        return self.connection.remote_container_id

    @property
    def has_unread(self) -> bool:
        """Whether what the client sent waits for its next turn."""
        return self._pressure.has_unread

    @property
    def takes_more(self) -> bool:
        output = self.connection.output
        is_bounded = output.blocked_bytes < BLOCKED_BYTES_MAX
        is_bounded = is_bounded and self._unread_bytes < self._unread.free_bytes
        return is_bounded and self._pressure.takes_more(output.size_bytes)

    def trust(self, grant: Grant | None = None) -> None:
        """Lift the limits of a stranger: the client has put a valid token, for this grant.

        `BudgetExceeded` if the clients of its rule have too much already.
        """
        if self.probation is not None:
            self.probation.end()
            self.probation = None
            if grant is not None:
                self.budgets.join(self._context.name, grant)

    def touch(self) -> None:
        """Let the server collect this peer's output at the end of the tick."""
        self._context.collect(self)

    def holder(self, link_name: str) -> LinkOwner | None:
        """The receiver of the client's link of that name, which holds its locks."""
        return self._receivers.get(link_name)

    def refuse(self, link: Link, address: str, refusal: Refusal) -> None:
        self.log_refusal(f"a link to {address!r}", refusal)
        link.refuse(refusal.condition, refusal.description)
        self.touch()

    def detach(self, link: Link, refusal: Refusal) -> None:
        self.log_refusal(f"a link to {getattr(link.owner, 'address', '')!r}", refusal)
        self._close_owner(link, self._context.now_ms())
        if link.state is LinkState.OFFERED:
            link.refuse(refusal.condition, refusal.description)
        else:
            link.detach(refusal.condition, refusal.description)
        self.touch()

    def log_refusal(self, what: str, refusal: Refusal) -> None:
        """Log why the client is refused; gives the refusal its TrackingId."""
        if isinstance(refusal, EntityNotFound):
            refusal.name_host(self._context.name, self.connection.remote_hostname)
        self._context.track(refusal)
        why = f"{refusal.description} ({refusal.condition})"
        # A throttled client tries again and again; /metrics counts its requests.
        level = logging.DEBUG if isinstance(refusal, ServerBusy) else logging.WARNING
        log.log(level, "%s: refused %s for %s: %s", self._context.name, what, self.address, why)

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Call `action` after a delay, if the connection is still open."""

        def act() -> None:
            if self._transport is not None and not self._transport.is_closing():
                action()

        self._context.loop.call_later(delay_ms / 1000, act)

    def drop(self) -> None:
        """Abort the connection now, without an answer."""
        self._hanging = True
        if self._transport is not None:
            self._transport.abort()

    def drop_after_commit(self) -> None:
        """Abort the connection once this tick's changes are on disk, without an answer."""
        self._doomed = True

    # Calls of the server

    def collect_output(self, now_ms: int) -> Callable[[], None] | None:
        """The action for when this tick's changes are on disk: write the output, or abort."""
        self._pressure.end_turn()
        if self._doomed:
            return self.drop
        try:
            data = self.connection.take_output(now_ms)
        except BudgetExceeded as error:
            self._give_up(error.condition, str(error))
            data = self.connection.take_output(now_ms)
        closing = self.connection.phase is ConnectionPhase.CLOSED
        pressure = self._pressure
        pressure.unwritten_bytes += len(data)
        self._count_unread()
        if not data and not closing:
            return None
        if pressure.unwritten_bytes >= UNWRITTEN_BYTES_MAX:
            pressure.apply()
        return lambda: self._write_collected(data, closing)

    def _write_collected(self, data: bytes, closing: bool) -> None:
        pressure = self._pressure
        before_bytes = pressure.unwritten_bytes
        pressure.unwritten_bytes -= len(data)
        self._write(data, closing)
        self._count_unread()
        if before_bytes >= UNWRITTEN_BYTES_MAX:
            pressure.apply()
        if before_bytes >= OUTPUT_BYTES_MAX:
            self._deliver_again()

    def _count_unread(self) -> None:
        """Count what the client has not read: what waits for its windows, its socket or the disk.

        A socket that takes more has little, and a client that reads has little at the disk.
        """
        pressure = self._pressure
        size_bytes = self.connection.output.blocked_bytes
        if pressure.unwritten_bytes > UNREAD_BYTES_EACH:
            size_bytes += pressure.unwritten_bytes
        if not pressure.is_writable and self._transport is not None:
            size_bytes += self._transport.get_write_buffer_size()
        if size_bytes == self._unread_bytes or self._is_closed_unread:
            return
        unread, was_much = self._unread, self._unread_bytes >= self._unread.free_bytes
        self._unread_bytes = size_bytes
        unread.count(self, size_bytes)
        if was_much and size_bytes < unread.free_bytes:
            self._deliver_again()

    def close_unread(self, text: str) -> None:
        self._is_closed_unread = True
        if self._pressure.is_writable:
            self._give_up(conditions.RESOURCE_LIMIT, text)
            return
        log.warning("%s: cut off %s: %s", self._context.name, self.address, text)
        self.drop()

    def pause_reading(self) -> None:
        """Stop reading: too much waits for the disk."""
        self._pressure.waits_for_disk = True
        self._pressure.apply()

    def resume_reading(self) -> None:
        self._pressure.waits_for_disk = False
        self._pressure.apply()

    def close(self, condition: str, description: str, *, linger: bool = True) -> None:
        """Close the connection with a reason; output that waits for a commit is dropped."""
        self.connection.take_output(self._context.now_ms())
        self.connection.close(condition, description)
        self._write(self.connection.take_output(self._context.now_ms()), True, linger)

    def expel(self, condition: str, description: str) -> None:
        """Close the links, then the connection with a reason."""
        self._close_owners(self._context.now_ms())
        self.close(condition, description)

    def abandon_links(self) -> None:
        """Detach every link from its entity: the engine is being replaced."""
        for link in self._links():
            owner_of(link).abandon()
            link.owner = None

    def entity_links(self) -> list[Link]:
        """Open links that send to an entity or receive from one."""
        links = (link for link in self._links() if owner_of(link).is_on_entity)
        return [link for link in links if link.state is LinkState.OPEN]

    def _links(self) -> list[Link]:
        sessions = self.connection.sessions.values()
        return [link for session in sessions for link in session.links.values()]

    def links_on(self, path: str) -> list[Link]:
        """This connection's links on an entity or below it, its management node included."""
        lowered, links = path.lower(), self._links()
        return [link for link in links if covers(lowered, getattr(link.owner, "address", ""))]

    # Events

    def _act(self, event: Event, now_ms: int) -> None:
        match event:
            case Disposed():
                if event.by_receiver:
                    self._opener.settle(event, now_ms)
            case CreditChanged():
                owner_of(event.link).credit_changed()
            case Attached():
                self._attach(event.link, now_ms)
            case Detached():
                self._close_owner(event.link, now_ms)
            case DeliveryTooLarge():
                owner_of(event.link).refuse_oversize(event, now_ms)
            case Ended():
                for link in list(event.session.links.values()):
                    self._close_owner(link, now_ms)
                    # A link whose opening is delayed must not open on a session that is gone.
                    link.state = LinkState.CLOSED
            case Opened():
                self._opened()
            case Closed():
                # Nothing can be delivered any more, even if the client has not hung up yet.
                self._close_owners(now_ms)
                if event.error is not None:
                    # The client's own words: of any length, and perhaps for a terminal.
                    name, why = self._context.name, visible(event.error.description)[:REASON_MAX]
                    log.warning("%s: connection from %s broke off: %s", name, self.address, why)

    def _give_up(self, condition: str, description: str) -> None:
        if self._hanging:
            return
        now_ms = self._context.now_ms()
        for event in self.connection.give_up(condition, description):
            self._act(event, now_ms)
        self.touch()

    def _opened(self) -> None:
        self._arm()
        login = next(iter(self.grants), None)
        if login is not None:  # No token can come before.
            self.trust(login)
        elif self.probation is not None:
            self.probation.opened()
        name, limit = self._context.name, self._context.profile.connections_max
        if limit is None or len(self._context.peers) <= limit:
            log.info("%s: connection from %s", name, self.address)
            return
        refusal = QuotaExceeded(
            f"ConnectionsQuotaExceeded for namespace: {name}. It has {limit} connections, which is "
            "the limit; close some."
        )
        self._give_up(refusal.condition, refusal.description)

    def _attach(self, link: Link, now_ms: int) -> None:
        terminus = link.source if link.sends else link.target
        address = entity_address(str(getattr(terminus, "address", None) or ""))
        fault = self._context.faults.decide("attach", address, now_ms)
        if fault is None:
            self._open(link, address, now_ms)
        elif fault.kind == "refuse_attach":
            link.refuse(fault.condition, fault.description)
        elif fault.kind == "delay":
            self.later(fault.delay_ms, lambda: self._open_late(link, address))

    def _open_late(self, link: Link, address: str) -> None:
        if link.state is LinkState.OFFERED:
            self._open(link, address, self._context.now_ms())
            self.touch()

    def _open(self, link: Link, address: str, now_ms: int) -> None:
        try:
            require_address(link, address)
            if address.lower() == CBS or address.lower().endswith(MANAGEMENT_SUFFIX):
                link.owner = self._open_node(link, address)
                return
            if isinstance(link, SenderLink):
                owner = self._opener.receiving(self, link, address, now_ms)
                self._receivers[link.name] = owner
            else:
                assert isinstance(link, ReceiverLink), link
                owner = self._opener.sending(self, link, address, now_ms)
            link.owner = owner
            self._watch(owner, now_ms)
        except Refusal as refusal:
            link.owner = None
            self.refuse(link, address, refusal)

    def _open_node(self, link: Link, address: str) -> LinkOwner:
        is_cbs = address.lower() == CBS
        if self.probation is not None and not is_cbs:
            raise Unauthorized(f"{address!r} needs a token; put one on {CBS} first")
        if is_cbs and any(
            one.sends is link.sends and one.state is LinkState.OPEN for one in self.links_on(CBS)
        ):
            raise NotAllowed(f"A connection has one link each way on {CBS}; use the open one.")
        if isinstance(link, SenderLink):
            if not is_cbs:
                return self._opener.replies(self, link, address)
            link.accept()
            return ReplyLink(self.replies, link, address)
        assert isinstance(link, ReceiverLink), link
        if not is_cbs:
            return self._opener.requests(self, link, address)
        respond = partial(put_token, self._context, self)
        node = RequestLink(self._context, self, link, address, respond)
        node.attach()
        return node

    def _close_owners(self, now_ms: int) -> None:
        for link in self._links():
            self._close_owner(link, now_ms)

    def _close_owner(self, link: Link, now_ms: int) -> None:
        owner, link.owner = owner_of(link), None
        if self._receivers.get(link.name) is owner:
            del self._receivers[link.name]
        owner.close(now_ms)

    # Output and time

    def _write(self, data: bytes, closing: bool, linger: bool = True) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if data:
            self._transport.write(data)
        if not closing:
            return
        if self.connection.peer_closed or not linger:
            self._transport.close()
        elif not self._said_close:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            # The client closes the socket when it has read CLOSE; this is for one that does not.
            self._context.loop.call_later(LINGER_S, self._transport.close)
        if self._cutting is None:
            # Closing waits for the client to read what was written.
            self._cutting = self._context.loop.call_later(CUT_OFF_S, self._transport.abort)
        self._said_close = True

    def _arm(self) -> None:
        deadline_ms = self.connection.next_deadline_ms()
        if deadline_ms and self._transport is not None:
            wait_s = max(0.0, (deadline_ms - self._context.now_ms()) / 1000)
            self._timer = self._context.loop.call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self._context.now_ms()
        if not self._pressure.may_read:
            # What the client sends is not read, so the broker cannot say that it is silent.
            self.connection.postpone_idle(now_ms)
        for event in self.connection.run_timers(now_ms):
            self._act(event, now_ms)
        self.touch()
        self._arm()

    def _end_expired(self) -> None:
        """Detach the links that have no token any more."""
        now_ms = self._context.now_ms()
        for link in self._links():
            try:
                self._watch(owner_of(link), now_ms)
            except Unauthorized as refusal:
                self.detach(link, LinkExpired(link.name, refusal))

    def clock_moved(self) -> None:
        """Go on after a jump of the clock: the client was not silent; its tokens may have ended."""
        self.connection.postpone_idle(self._context.now_ms())
        self._expiry.cancel()
        self._end_expired()

    def _watch(self, owner: LinkOwner, now_ms: int) -> None:
        """Have the link detached when its right ends."""
        until_ms = owner.granted_until_ms(now_ms)
        if until_ms is not None:
            self._expiry.watch(until_ms)


def _parts(events: list[Event]) -> list[Event | list[DeliveryArrived]]:
    """The events, with deliveries of one link that came one after the other taken together."""
    parts: list[Event | list[DeliveryArrived]] = []
    run: list[DeliveryArrived] = []
    for event in events:
        if type(event) is not DeliveryArrived:
            run = []
            parts.append(event)
        elif run and run[0].link is event.link:
            run.append(event)
        else:
            run = [event]
            parts.append(run)
    return parts
