"""The kinds of links that a client may have to the primary: receivers, requests and answers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.amqp.events import (
    Attached,
    CreditChanged,
    DeliveryArrived,
    Detached,
    Disposed,
    Drained,
    Event,
)
from twinbus.amqp.link import SETTLED, LinkState, ReceiverLink, SenderLink
from twinbus.amqp.message import Sections, decode_map, join, split
from twinbus.amqp.performatives import (
    ACCEPTED_BYTES,
    RELEASED_BYTES,
    Source,
    Target,
    TransactionalState,
    encode_state,
)
from twinbus.amqp.types import DecodeError
from twinbus.broker.links.context import ReplyLink
from twinbus.broker.links.management import SENDING_OPERATIONS
from twinbus.broker.links.requests import (
    REQUEST_BYTES_MAX,
    RequestLink,
    correlation_id,
    failure,
    text_of,
)
from twinbus.broker.refusals import (
    EntityNotFound,
    MalformedMessage,
    OperationTimedOut,
    QuotaExceeded,
    Refusal,
    Unauthorized,
)
from twinbus.broker.sas import LISTEN, SEND
from twinbus.client.receiving import SESSION_FILTER
from twinbus.gateway.node_requests import ANSWERING_BYTES, REQUEST_BYTES, Holding
from twinbus.gateway.relay import PrimaryRelay, Relayed, encoded_state
from twinbus.gateway.twin_requests import TwinRequests

if TYPE_CHECKING:
    from twinbus.amqp.session import Session
    from twinbus.broker.links.context import LinkClient, PeerContext
    from twinbus.gateway.relay_records import Asked

WINDOW: Final = 250
WINDOW_BYTES: Final = 4 * 1024 * 1024
FIRST_WINDOW: Final = 16
"""Deliveries that the primary may have on their way to one receiver of a client: so many, fewer
large ones, and at first as many as are not too much at 256 KB. A client that gives more credit and
does not read must not fill the gateway's memory."""

REPLY_CREDIT: Final = 100
WAITING_MAX: Final = 1_000
"""Requests on one link that wait for credit of the primary; their bytes are in the budget of its
connection."""

ANSWERING_MAX: Final = 200
"""Requests on one link that the sides of an entity with a twin are answering."""


class ReceivingWindow:
    """How many deliveries may be on their way to one receiver of a client."""

    def __init__(self) -> None:
        self._size_bytes = 0
        """About the size of the largest recent delivery; 0: none came."""

    @property
    def size(self) -> int:
        if not self._size_bytes:
            return FIRST_WINDOW
        return max(1, min(WINDOW, WINDOW_BYTES // self._size_bytes))

    def came(self, size_bytes: int) -> None:
        """A delivery of this size came."""
        self._size_bytes = max(size_bytes, self._size_bytes * 15 // 16)


class RelayedReceiver(Relayed):
    """A receiver from a queue, a subscription or a dead-letter queue of the primary."""

    is_on_entity = True
    link: SenderLink
    up: ReceiverLink | None = None

    def __init__(
        self, relay: PrimaryRelay, link: SenderLink, address: str, granted_until_ms: int
    ) -> None:
        self.relay = relay
        self.link = link
        self.address = address
        self._granted_until_ms = granted_until_ms
        self._numbers: dict[int, int] = {}
        """The primary's delivery id for each of ours that the client has not settled."""
        self._unconfirmed: set[int] = set()
        self._window = ReceivingWindow()
        self._beyond = 0
        """Credit of a draining client that the primary was not asked for yet."""
        self._is_asking = False
        """Whether the primary is asked for more when all of the last read was handed on."""
        self._records = None if relay.records is None else relay.records.receiver(address)

    @property
    def client(self) -> LinkClient:
        return self.relay.client

    @property
    def unconfirmed(self) -> set[int]:
        return self._unconfirmed

    def attach_to(self, session: Session) -> None:
        link = self.link
        source = link.source or Source()
        if self._records is not None:
            self._records.asks_session = SESSION_FILTER in (source.filter or {})
        target = link.target if isinstance(link.target, Target) else Target()
        self.up = up = session.attach_receiver(
            link.name,
            # Without the bytes it was read from, which name the gateway's host.
            source=replace(source, address=self.address, raw=None),
            target=target,
            settled=link.snd_settle_mode == SETTLED,
            confirmed=link.rcv_settle_mode == 1,
            properties=link.properties or None,
        )
        up.owner = self

    def handle(self, event: Event) -> None:
        match event:
            case DeliveryArrived():
                self._deliver(event)
            case Attached():
                self._accept()
            case Drained():
                self._on_drained()
            case Detached():
                if self._records is not None and event.error is not None:
                    self._records.session_refused(str(event.error.condition), "")
                self.lose_by(event.error)

    def lose(self, refusal: Refusal) -> None:
        if self._records is not None and self.up is not None:
            self._records.session_refused("", refusal.description)
            self._records.ended()
        super().lose(refusal)

    def close(self, now_ms: int) -> None:
        if self._records is not None:
            self._records.ended()
        super().close(now_ms)

    def _accept(self) -> None:
        up, link = self.up, self.link
        assert up is not None
        if up.source is None:
            return  # A refusal, whose reason follows in a detach.
        if self._records is not None:
            self._records.session_given()
        if link.state is not LinkState.OFFERED:
            return  # The client is gone.
        address = link.source.address if link.source is not None else None
        link.accept(
            source=replace(up.source, address=address, raw=None), properties=up.properties or None
        )
        self.credit_changed()  # The .NET SDK gives its credit with the attach.
        self.relay.client.touch()

    def granted_until_ms(self, now_ms: int) -> int:
        """When the right to receive ends; raises `Unauthorized` if it has ended."""
        if now_ms >= self._granted_until_ms:
            grants = self.relay.client.grants
            self._granted_until_ms = grants.require(self.address, LISTEN, now_ms)
        return self._granted_until_ms

    # Deliveries

    def credit_changed(self) -> None:
        """Give the client's credit to the primary."""
        link, up = self.link, self.up
        if up is None or up.state is not LinkState.OPEN:
            return
        wanted = min(link.credit, self._window.size)
        if link.drain:
            if wanted == 0:
                link.drained()
                self.relay.client.touch()
            elif not up.is_draining and self._takes_more:
                self._beyond = link.credit - wanted
                up.grant(wanted, drain=True)
        elif wanted < up.credit or self._may_ask(wanted, up.credit):
            up.grant(wanted)
        self.relay.flush()

    def may_write_again(self) -> None:
        self.credit_changed()

    def _may_ask(self, wanted: int, asked: int) -> bool:
        """Whether to ask the primary for more: the client reads, and enough has come."""
        if wanted <= asked or not self._takes_more:
            return False
        return wanted < self._window.size or asked <= wanted // 2

    @property
    def _takes_more(self) -> bool:
        """Whether the client reads: its socket and the window of its session take more."""
        return self.relay.client.takes_more and not self.link.session.blocks(self.link)

    def _deliver(self, event: DeliveryArrived) -> None:
        link = self.link
        if link.state is not LinkState.OPEN:
            if self._records is not None:
                self._records.came_too_late(event.payload, is_deleted=event.settled)
            return
        # The client may have taken its credit back while this was on its way: it must expect that.
        link.credit = max(link.credit, 1)
        number = link.send(
            event.payload, event.tag, settled=event.settled, message_format=event.message_format
        )
        if not event.settled:
            self._numbers[number] = event.delivery_id
        if self._records is not None:
            held = None if event.settled else number
            self._records.received(held, event.payload, is_deleted=event.settled)
        self.relay.client.touch()
        self._window.came(len(event.payload))
        # Later: the primary's link has counted all deliveries of a read when the first of them is
        # handed on, and the client's has counted this one only.
        if not self._is_asking:
            self._is_asking = True
            asyncio.get_running_loop().call_soon(self._ask_again)

    def _ask_again(self) -> None:
        self._is_asking = False
        if self.link.state is LinkState.OPEN:
            self.credit_changed()

    def _on_drained(self) -> None:
        if not self.link.drain:
            return
        if self.link.credit and self.link.credit <= self._beyond:
            self.credit_changed()  # All that was asked for came: ask for the rest.
            return
        self.link.drained()
        self.relay.client.touch()

    def settle(self, numbers: list[int], event: Disposed) -> None:
        """Settle deliveries with the primary as the client settled them here."""
        up = self.up
        if up is None or up.state is not LinkState.OPEN:
            return
        state = encoded_state(event.state, RELEASED_BYTES)
        if self._records is not None:
            for number in numbers:
                if (there := self._numbers.get(number)) is not None:
                    is_answered = not event.settled
                    self._records.settled(number, there, event.state, is_answered=is_answered)
        for here, first, last in _runs(numbers, self._numbers):
            if event.settled:
                up.session.settle(first, last, state, as_receiver=True)
                continue
            ours = range(here, here + last - first + 1)
            self.relay.expect(
                self, up.session, list(zip(range(first, last + 1), ours, strict=True))
            )
            up.session.dispose(first, last, state)
        self.relay.flush()

    def settle_in(self, numbers: list[int], event: Disposed, state: TransactionalState) -> bool:
        """Settle deliveries in a transaction; false if the primary cannot be told all of it.

        They stay unsettled until the primary settles them, unless the client has settled.
        """
        up = self.up
        if up is None or up.state is not LinkState.OPEN:
            return False
        encoded = encode_state(state)
        known = [number for number in numbers if number in self._numbers]
        for number in known:
            there = self._numbers[number]
            if self._records is not None:
                self._records.in_transaction(number)
            if event.settled:
                del self._numbers[number]
                up.session.settle(there, there, encoded, as_receiver=True)
            else:
                self.relay.expect(self, up.session, [(there, number)])
                up.session.dispose(there, there, encoded)
        self.relay.flush()
        return len(known) == len(numbers)

    def confirmed(self, number: int, here: int, state: object) -> None:
        self._numbers.pop(here, None)
        if self._records is not None:
            self._records.confirmed(number, state)

    def not_confirmed(self, number: int, text: str) -> None:
        if self._records is not None:
            self._records.not_confirmed(number, text)


class RelayedReplies(ReplyLink, Relayed):
    """The link on which a client reads the answers of a `$management` node of the primary."""

    is_node = True
    link: SenderLink
    up: ReceiverLink | None = None

    def __init__(self, relay: PrimaryRelay, link: SenderLink, address: str) -> None:
        super().__init__(relay.client.replies, link, address)
        self.relay = relay

    def attach_to(self, session: Session) -> None:
        target = self.link.target if isinstance(self.link.target, Target) else Target()
        self.up = session.attach_receiver(
            self.link.name, source=Source(address=self.address), target=replace(target, raw=None)
        )
        self.up.owner = self

    def handle(self, event: Event) -> None:
        up = self.up
        assert up is not None
        match event:
            case DeliveryArrived():
                if not event.settled:
                    number = event.delivery_id
                    up.session.settle(number, number, ACCEPTED_BYTES, as_receiver=True)
                if self.relay.records is not None:
                    self.relay.records.answered(self.node, event.payload)
                if self.relay.unanswered.answered(self.node, event.payload):
                    self.send(event.payload)
                if self.link.state is LinkState.CLOSED:  # It had too many answers to keep.
                    self.close(0)
                elif up.credit < REPLY_CREDIT // 2:
                    up.grant(REPLY_CREDIT)
                self.relay.client.touch()
            case Attached() if up.source is not None:
                self._accept()
                up.grant(REPLY_CREDIT)
                self.relay.flush()
            case Detached():
                self.lose_by(event.error)

    def not_reached(self, refusal: Refusal) -> None:
        self._accept()

    def _accept(self) -> None:
        if self.link.state is LinkState.OFFERED:
            self.link.accept()
            self.credit_changed()
            self.relay.client.touch()

    def close(self, now_ms: int) -> None:
        ReplyLink.close(self, now_ms)
        Relayed.close(self, now_ms)


class WaitingRequest(NamedTuple):
    """A request to a node of the primary that has no credit yet."""

    request: bytes
    here: int | None
    """The delivery to settle; None: it is settled."""
    asked: Asked | None
    """What is recorded of it."""


class RelayedRequests(RequestLink, Relayed):
    """The link on which a client sends requests to a `$management` node of the primary."""

    is_node = True
    link: ReceiverLink
    up: SenderLink | None = None

    def __init__(
        self,
        context: PeerContext,
        relay: PrimaryRelay,
        link: ReceiverLink,
        address: str,
        twins: TwinRequests | None = None,
    ) -> None:
        """`twins` answers requests about messages of an entity with a twin."""
        super().__init__(
            context, relay.client, link, address, self.forward, limit_bytes=REQUEST_BYTES_MAX
        )
        self.relay = relay
        self._twins = twins
        self._answering = 0
        """Requests that `twins` is answering."""
        self._waiting: OrderedDict[int, WaitingRequest] = OrderedDict()
        """Requests without credit, in their order."""
        self._last_waiting = 0
        self._held = Holding(relay.client.budgets.held_bytes)
        """Requests without credit, and those that `twins` is answering."""
        self.taking: int | None = None
        """The delivery of the request that is being handed on; None: it is settled."""
        self._numbers: dict[int, int] = {}
        """Our delivery for each of the primary's that it has not settled."""
        self._is_beginning = False
        """Whether the primary is being reached for requests that wait."""

    def attach_to(self, session: Session) -> None:
        self._is_beginning = False
        source = self.link.source or Source()
        self.up = session.attach_sender(
            self.link.name,
            source=replace(source, raw=None),
            target=Target(address=self.address),
            settled=self.link.snd_settle_mode == SETTLED,
        )
        self.up.owner = self

    def handle(self, event: Event) -> None:
        up = self.up
        assert up is not None
        match event:
            case Attached() if up.target is not None:
                self._accept()
            case CreditChanged():
                self._send()
            case Detached():
                self.lose_by(event.error)

    def not_reached(self, refusal: Refusal) -> None:
        """Take requests all the same; each is answered that the primary cannot be reached."""
        self._is_beginning = False
        self._accept()
        while self._waiting:
            one = self._next_waiting()
            request = split(one.request)
            response = failure(correlation_id(request), refusal)
            self.relay.unanswered.answered(self.node, response)
            self._reply(request, one.here, response)

    def _next_waiting(self) -> WaitingRequest:
        """Take the request out that has waited longest."""
        _, waiting = self._waiting.popitem(last=False)
        self._held.give_back(len(waiting.request) + REQUEST_BYTES)
        return waiting

    def _give_up(self, place: int, request: Sections, here: int | None) -> None:
        """The primary has not answered a request in time: refuse it."""
        if self.link.state is not LinkState.OPEN:
            return
        refusal = self.relay.silence()
        waiting = self._waiting.pop(place, None)
        if waiting is not None:
            self._held.give_back(len(waiting.request) + REQUEST_BYTES)
        else:
            refusal = OperationTimedOut(f"{refusal.description} It may carry the request out.")
            theirs = next((one for one, ours in self._numbers.items() if ours == here), None)
            # The primary may have settled it: that it has the request is no answer.
            here = None if theirs is None else self._numbers.pop(theirs)
        self._reply(request, here, failure(correlation_id(request), refusal))

    def close(self, now_ms: int) -> None:
        while self._waiting:
            self._next_waiting()
        super().close(now_ms)

    def _accept(self) -> None:
        if self.link.state is LinkState.OFFERED:
            self.attach()
            self.relay.client.touch()

    def _reply(self, request: Sections, here: int | None, response: bytes) -> None:
        with suppress(EntityNotFound):  # The client reads no answers any more.
            self._reply_link(request).send(response)
        if here is not None and self.link.state is LinkState.OPEN:
            self.link.session.settle(here, here, ACCEPTED_BYTES, as_receiver=True)
        self.relay.client.touch()

    def forward(self, request: Sections, now_ms: int) -> bytes | None:
        """Check the right to a request, then hand it on; its answer comes by the reply link."""
        try:
            operation = text_of(decode_map(request.application_properties).get("operation"))
        except DecodeError as error:
            raise MalformedMessage(f"the request cannot be read: {error}") from error
        right = SEND if operation in SENDING_OPERATIONS else LISTEN
        try:
            # On the node itself: some SDKs put their token for it, others for the whole entity.
            self.relay.client.grants.require(self.address, right, now_ms)
        except Unauthorized as refusal:
            self.relay.client.log_refusal(f"a request to {self.address!r}", refusal)
            return failure(correlation_id(request), refusal)
        if self._twins is not None and self._twins.takes(request):
            self._answer(request, self._twins)
            return None
        request_id, encoded = correlation_id(request), join(request)
        if len(self._waiting) >= WAITING_MAX:
            raise QuotaExceeded(
                f"{WAITING_MAX} requests of this link wait for the primary, which is the limit;"
                " send fewer at once."
            )
        if self.up is None and not self._is_beginning:
            self.relay.begin_node(self)
            self._is_beginning = True
        size_bytes, place = len(encoded) + REQUEST_BYTES, self._last_waiting + 1
        self._held.take(size_bytes)
        if request_id is not None:
            # Not the whole request: it may have been sent long before it is given up.
            asker = Sections(properties=request.properties)
            give_up = partial(self._give_up, place, asker, self.taking)
            try:
                self.relay.unanswered.add(self.node, request_id, give_up, len(asker.properties))
            except QuotaExceeded:
                self._held.give_back(size_bytes)
                raise
        records = self.relay.records
        asked = None if records is None else records.read(self.path, operation, request)
        self._last_waiting = place
        self._waiting[place] = WaitingRequest(encoded, self.taking, asked)
        self._send()
        return None

    def _answer(self, request: Sections, twins: TwinRequests) -> None:
        """Let the sides answer that have the messages."""
        if self._answering >= ANSWERING_MAX:
            raise QuotaExceeded(
                f"{self._answering} requests are being answered; send fewer at once."
            )
        size_bytes = len(join(request)) + ANSWERING_BYTES
        self._held.take(size_bytes)
        self._answering += 1
        self.relay.spawn(self._answer_later(request, self.taking, twins, size_bytes))

    async def _answer_later(
        self, request: Sections, here: int | None, twins: TwinRequests, size_bytes: int
    ) -> None:
        try:
            response = await twins.answer(request)
        finally:
            self._answering -= 1
            self._held.give_back(size_bytes)
        if self.link.state is LinkState.OPEN:
            self._reply(request, here, response)

    def take(self, event: DeliveryArrived, now_ms: int) -> None:
        self.taking = None if event.settled else event.delivery_id
        super().take(event, now_ms)

    def taken(self, number: int, state: bytes) -> None:
        here = self._numbers.pop(number, None)
        if here is not None and self.link.state is LinkState.OPEN:
            self.link.session.settle(here, here, state, as_receiver=True)
            self.relay.client.touch()

    def _send(self) -> None:
        up = self.up
        while self._waiting and up is not None and up.credit > 0:
            request, here, asked = self._next_waiting()
            # Tags of unsettled deliveries must differ on a link (AMQP 1.0, 2.6.12).
            tag = up.delivery_count.to_bytes(4, "big")
            number = up.send(request, tag, settled=here is None)
            if asked is not None and self.relay.records is not None:
                self.relay.records.asked(self.node, asked)
            if here is not None:
                self._numbers[number] = here
        self.relay.flush()


def _runs(numbers: list[int], theirs: dict[int, int]) -> list[tuple[int, int, int]]:
    """Runs of deliveries that follow one another at both ends: our first, their first and last.

    They are taken out of `theirs`.
    """
    runs: list[tuple[int, int, int]] = []
    for number in numbers:
        other = theirs.pop(number, None)
        if other is None:
            continue
        if runs:
            here, first, last = runs[-1]
            if other == last + 1 and number == here + other - first:
                runs[-1] = here, first, other
                continue
        runs.append((number, other, other))
    return runs
