"""One client's links to the primary, one for one: receivers, and requests to `$management`.

    client  --attach-->  gateway: rights  --the same attach-->  primary
    client  <--deliveries, answers--  gateway  <--------------  primary
    client  --credit, settlements-->  gateway  -------------->  primary

Each client has a connection of its own to the primary, because locks and sessions belong to a
connection, and requests name its links. When a link of the primary is lost, the client's link is
detached with the same condition, and the SDK attaches again by itself.

A `$management` node can be opened while the primary is down or hangs, because the Go SDK opens one
with every sender: without it the SDK would send nothing in an outage. Its requests are refused.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final

from twinbus.amqp.events import (
    DeliveryArrived,
    Disposed,
    Event,
)
from twinbus.amqp.link import Link, LinkSession, LinkState
from twinbus.amqp.performatives import (
    ACCEPTED_BYTES,
    DeliveryState,
    Error,
    encode_state,
)
from twinbus.broker.links.context import LinkOwner
from twinbus.broker.refusals import NotAllowed, Refusal, ServerBusy
from twinbus.client.connection import ANSWER_S, NamespaceConnection
from twinbus.client.links import REOPEN_PAUSE_S
from twinbus.client.request_node import ConnectionLost, RequestRefused
from twinbus.errors import (
    BacklogGuardError,
    BacklogMessageTooLargeError,
    EntityUnusableError,
    PairClosedError,
)
from twinbus.gateway.node_requests import UnansweredRequests
from twinbus.servicebus import conditions
from twinbus.servicebus.conditions import DETACH_FORCED
from twinbus.servicebus.failures import (
    CONDITION_OF,
    NamespaceFailure,
    is_too_large,
    of_condition,
    of_error,
)
from twinbus.servicebus.names import MANAGEMENT_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.session import Session
    from twinbus.broker.links.context import LinkClient
    from twinbus.gateway.relay_records import RelayRecords
    from twinbus.namespace.access import Endpoint


DOOMED_MAX = 1_000


class PrimaryRelay:
    """One client's connection to the primary."""

    def __init__(
        self,
        endpoint: Endpoint,
        client: LinkClient,
        spawn: Callable[[Coroutine[None, None, None]], None],
        connect: Callable[..., NamespaceConnection] = NamespaceConnection,
        records: RelayRecords | None = None,
        *,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`records` writes to the ledger; None: there is none.

        `answer_s` is the time for the primary to open a node, and to answer a request to it.
        """
        self.client = client
        self.unanswered = UnansweredRequests(answer_s)
        self.records = records
        self._connect = connect
        self._endpoint = endpoint
        self.spawn = spawn
        """Runs work that outlives a link."""
        self._connection: NamespaceConnection | None = None
        self._opening = asyncio.Lock()
        self._failure: tuple[float, str] | None = None
        """When the primary could last not be reached, and why."""
        self.relayed: set[Relayed] = set()
        self.nodes: dict[tuple[LinkSession, str], Session] = {}
        """Sessions of `$management` links: requests and answers must share one."""
        self._settling: dict[LinkSession, dict[int, tuple[Relayed, int]]] = {}
        """Settlements that the primary has not confirmed, by its delivery ids."""
        self.doomed: OrderedDict[bytes, str] = OrderedDict()
        """Transactions of which an operation was rejected here, and why."""
        self._closed = False

    def begin(self, relayed: Relayed) -> None:
        """Attach to the primary what the client attached here."""
        self.relayed.add(relayed)
        if relayed.is_node:
            self._limit(relayed)
        self.spawn(self._begin(relayed))

    def begin_node(self, requests: Relayed) -> None:
        """Attach requests, and the answers of the same node if the client has opened them."""
        self.relayed.add(requests)
        self._limit(requests)
        self.spawn(self._begin_node(requests))

    def _limit(self, relayed: Relayed) -> None:
        """Open a link of a node here after a while, though the primary has not answered."""
        loop = asyncio.get_running_loop()
        loop.call_later(self.unanswered.answer_s, self._open_without, relayed)

    def _open_without(self, relayed: Relayed) -> None:
        if relayed in self.relayed and relayed.link.state is LinkState.OFFERED:
            relayed.not_reached(self.silence())

    def silence(self) -> Refusal:
        """Why a request is refused that the primary did not get."""
        return ServerBusy(f"The primary did not answer for {self.unanswered.answer_s:g} s.")

    async def _begin_node(self, requests: Relayed) -> None:
        replies = [one for one in self.relayed if one is not requests and one.node == requests.node]
        # The answers first: a request goes out with the first credit.
        for relayed in replies:
            if relayed.up is None:
                await self._begin(relayed)
        if all(one.up is not None for one in replies if one in self.relayed):
            await self._begin(requests)
        else:
            # The primary would have nowhere to send its answers, and the client would wait.
            why = (
                self._failure[1] if self._failure is not None else "The primary cannot be reached."
            )
            requests.not_reached(ServerBusy(why))

    async def _begin(self, relayed: Relayed) -> None:
        try:
            session = await self._session(relayed)
        except RequestRefused as error:
            if error.meaning.counts:  # The token service or the primary's own is down.
                relayed.not_reached(ServerBusy(str(error)))
            else:
                relayed.lose(refusal_of(error))
        except ConnectionLost as error:
            relayed.not_reached(ServerBusy(str(error)))
        else:
            if relayed not in self.relayed or relayed.link.state is LinkState.CLOSED:
                self.forget(relayed)
            elif relayed.up is None:
                relayed.attach_to(session)
                self.flush()

    async def _session(self, relayed: Relayed) -> Session:
        """A session of the primary for the link, with a token for its entity."""
        async with self._opening:
            if self._closed:
                raise ConnectionLost("the client is gone")
            connection = self._connection
            if connection is None:
                connection = await self._open()
                self._connection = connection
                connection.lost.add_done_callback(self._on_lost)
        await connection.authorize(relayed.path)
        node = relayed.node
        if node is None:
            return await connection.session_with_room()
        session = self.nodes.get(node)
        if session is None or session.free_handles < 1:
            session = self.nodes[node] = await connection.session_with_room(links=2)
        return session

    async def _open(self) -> NamespaceConnection:
        loop = asyncio.get_running_loop()
        # With a primary that hangs, links that waited would else wait once more, one by one.
        if self._failure is not None and loop.time() - self._failure[0] < REOPEN_PAUSE_S:
            raise ConnectionLost(self._failure[1])
        connection = self._connect(self._endpoint, self.on_event, on_deliveries=self._on_deliveries)
        try:
            await connection.open()
        except ConnectionLost as error:
            self._failure = loop.time(), str(error)
            raise
        return connection

    def doom(self, txn_id: bytes, why: str) -> None:
        """Let a transaction be rolled back at its discharge."""
        self.doomed.setdefault(txn_id, why)
        if len(self.doomed) > DOOMED_MAX:
            self.doomed.popitem(last=False)

    def flush(self) -> None:
        if self._connection is not None:
            self._connection.flush()

    def forget(self, relayed: Relayed) -> None:
        """The client's link is closed."""
        self.relayed.discard(relayed)
        node = relayed.node
        if node is not None and not any(one.node == node for one in self.relayed):
            self.nodes.pop(node, None)

    def settling(self, session: LinkSession) -> dict[int, tuple[Relayed, int]]:
        return self._settling.setdefault(session, {})

    async def close(self) -> None:
        """The client is gone."""
        self._closed = True
        self.unanswered.close()
        async with self._opening:
            if self._connection is not None:
                await self._connection.close()

    def on_event(self, event: Event) -> None:
        if isinstance(event, Disposed):
            if not event.by_receiver:
                self._on_confirmed(event)
                return
            # The primary took requests: tell the client with its answers, in the same write. The
            # Python SDK reads twice, up to 0.2 s apart, what comes in two pieces.
            state = encoded_state(event.state, ACCEPTED_BYTES)
            for number, link, _ in event.session.take_unsettled(event.first, event.last):
                if isinstance(link.owner, Relayed):
                    link.owner.taken(number, state)
            return
        owner = getattr(getattr(event, "link", None), "owner", None)
        if isinstance(owner, Relayed):
            owner.handle(event)

    def _on_deliveries(self, run: list[DeliveryArrived]) -> None:
        for event in run:
            owner = event.link.owner
            if isinstance(owner, Relayed):
                owner.handle(event)

    def _on_confirmed(self, event: Disposed) -> None:
        """The primary settled what the client wanted to settle: tell the client."""
        waiting = self._settling.get(event.session, {})
        state = encoded_state(event.state, ACCEPTED_BYTES)
        sessions: dict[LinkSession, None] = {}
        for number in event.among(waiting):
            if not event.settled:
                # Part of a transaction, whose discharge settles it: it may be given again.
                receiver, here = waiting[number]
                if receiver.link.state is not LinkState.CLOSED:
                    receiver.link.session.confirm(here, here, state)
                continue
            receiver, here = waiting.pop(number)
            receiver.confirmed(number, here, event.state)
            if receiver.link.state is LinkState.CLOSED:
                continue  # Its session may be gone, and another may have the channel.
            session = receiver.link.session
            session.take_unsettled(here, here)
            session.settle(here, here, state, as_receiver=False)
            sessions[session] = None
        for session in sessions:
            # One answer for each disposition: the SDK waits for a frame of its own for each.
            session.flush()
        self.client.touch()

    def _on_lost(self, reason: asyncio.Future[str]) -> None:
        self._connection = None
        text = f"The connection to the primary is lost: {reason.result()}"
        settling, self._settling = self._settling, {}
        for waiting in settling.values():
            for number, (receiver, _) in waiting.items():
                receiver.not_confirmed(number, text)
        self.nodes.clear()
        if self.records is not None:
            self.records.lost(text)
        for relayed in list(self.relayed):
            relayed.lose(UpstreamRefusal(DETACH_FORCED, text))


class Relayed(LinkOwner, ABC):
    """A client's link and the one of the primary behind it."""

    is_node = False
    """True for a link of a `$management` node."""
    relay: PrimaryRelay
    link: Link
    """The client's link."""
    up: Link | None = None
    """The link of the primary that is or was behind it."""

    @property
    def path(self) -> str:
        """The entity that the gateway needs a token for."""
        return self.address.removesuffix(MANAGEMENT_SUFFIX)

    @property
    def node(self) -> tuple[LinkSession, str] | None:
        """What requests and answers of one `$management` node share; None for other links."""
        return (self.link.session, self.path.lower()) if self.is_node else None

    @abstractmethod
    def attach_to(self, session: Session) -> None:
        """Attach the same link to the primary."""

    @abstractmethod
    def handle(self, event: Event) -> None:
        """Act on an event of the primary's link."""

    def close(self, now_ms: int) -> None:
        self.relay.forget(self)
        if self.up is not None:
            self.up.detach()
            self.relay.flush()

    def taken(self, number: int, state: bytes) -> None:
        """The primary settled a delivery of its link that the client sent."""

    def confirmed(self, number: int, here: int, state: object) -> None:
        """The primary settled its delivery `number`, which is `here` at the client."""

    def not_confirmed(self, number: int, text: str) -> None:
        """The primary can answer a settlement no more."""

    def not_reached(self, refusal: Refusal) -> None:
        """The primary cannot be reached: refuse the client's link."""
        self.lose(refusal)

    def lose(self, refusal: Refusal) -> None:
        """The primary refused or closed its link, or is gone: so does the client's link."""
        self.relay.forget(self)
        if self.link.state is not LinkState.CLOSED:
            self.relay.client.detach(self.link, refusal)

    def lose_by(self, error: Error | None) -> None:
        """The primary detached its link."""
        condition = str(error.condition) if error is not None else DETACH_FORCED
        text = (error.description if error is not None else None) or "The primary closed the link."
        self.lose(UpstreamRefusal(condition, text))


def encoded_state(state: object, default: bytes) -> bytes:
    """An outcome as bytes; `default` stands for none."""
    return encode_state(state) if isinstance(state, DeliveryState) else default


class UpstreamRefusal(Refusal):
    """A refusal of the primary, handed on with its condition and text."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition


def refusal_of(error: Exception) -> Refusal:
    """The refusal for the client of a send that failed; it has the namespace's own condition."""
    if isinstance(error, Refusal):
        return error
    condition, meaning = "", of_error(error)
    # Not the condition of a token that could not be fetched because its service is down.
    if isinstance(error, NamespaceFailure) and of_condition(error.condition, meaning) is meaning:
        condition = error.condition
    if isinstance(error, BacklogMessageTooLargeError) or is_too_large(error):
        condition = conditions.MESSAGE_SIZE
    elif isinstance(error, BacklogGuardError):
        # A retry would have the same result, so no condition after which SDKs retry.
        condition = conditions.NOT_ALLOWED
    elif isinstance(error, EntityUnusableError):
        condition = conditions.NOT_FOUND
    elif isinstance(error, PairClosedError):
        condition = conditions.SERVER_BUSY
    return UpstreamRefusal(condition or CONDITION_OF[meaning], str(error))


_PLAIN: Final = re.compile(r"[!-~ ]*")
_NEVER_PLAIN: Final = frozenset("%\\@?#*")
"""Characters that no name at Azure has; to some readers of an address they end or escape a part."""


def require_plain(path: str) -> None:
    """Raise `NotAllowed` for a path that the primary might read as another one.

    A token may be for one entity only. `orders/../payments` begins with that entity, and the
    gateway's own credential would then reach `payments` at a server that resolves the path.
    """
    parts = path.split("/")
    if (
        not _PLAIN.fullmatch(path)
        or not _NEVER_PLAIN.isdisjoint(path)
        or any(part in {".", ".."} for part in parts)
        or "" in parts[1:]
    ):
        raise NotAllowed(f"{path!r:.280} is no address of an entity or its nodes.")
