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
from collections import Counter, OrderedDict
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Final

from twinbus.amqp.budgets import Budget
from twinbus.amqp.events import (
    DeliveryArrived,
    DetachAnswered,
    Detached,
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
from twinbus.amqp.session import ID_BYTES_MAX
from twinbus.broker.budgets import CONNECTION_LINKS
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
from twinbus.gateway.node_requests import Holding, UnansweredRequests
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


DOOMED_MAX: Final = 1_000
"""Transactions of one client that are to be rolled back; the broker lets it have as many open."""

IDLE_PATHS_MAX: Final = 100
"""Entities whose tokens are renewed though no link of the client needs them: it may come again."""

SETTLING_BYTES: Final = 250
"""A settlement that the primary has not confirmed: two entries and their numbers."""


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
        links: Budget | None = None,
    ) -> None:
        """`records` writes to the ledger; None: there is none. `links` is for those of all clients.

        `answer_s` is the time for the primary to open a node, and to answer a request to it.
        """
        self.client = client
        self.unanswered = UnansweredRequests(answer_s, client.budgets.held_bytes)
        owner, unit = "this connection", "links that are open, or being opened or closed"
        self.links = Holding(Budget(owner, unit, CONNECTION_LINKS, links))
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
        self._counted: set[Relayed] = set()
        """Those in `links`: until the primary has closed a link, or it was never opened there."""
        self._paths: Counter[str] = Counter()
        """How many of them each entity has."""
        self._idle_paths: OrderedDict[str, None] = OrderedDict()
        """Entities without one, whose tokens are renewed all the same."""
        self.nodes: dict[tuple[LinkSession, str], Session] = {}
        """Sessions of `$management` links: requests and answers must share one."""
        self._settling: dict[LinkSession, dict[int, tuple[Relayed, int]]] = {}
        """Settlements that the primary has not confirmed, by its delivery ids."""
        self._settling_bytes = Budget(owner, "bytes", whole=client.budgets.held_bytes)
        self.doomed: OrderedDict[bytes, str] = OrderedDict()
        """Transactions of which an operation was rejected here, and why."""
        self._closed = False

    def begin(self, relayed: Relayed) -> None:
        """Attach to the primary what the client attached here.

        `QuotaExceeded` if too many links of the client are not closed at the primary yet.
        """
        self._count(relayed)
        self.relayed.add(relayed)
        if relayed.is_node:
            self._limit(relayed)
        self.spawn(self._perform(self._begin, relayed))

    def begin_node(self, requests: Relayed) -> None:
        """Attach requests, and the answers of the same node if the client has opened them."""
        self._count(requests)
        self.relayed.add(requests)
        self._limit(requests)
        self.spawn(self._perform(self._begin_node, requests))

    async def _perform(
        self, begin: Callable[[Relayed], Coroutine[None, None, None]], relayed: Relayed
    ) -> None:
        try:
            await begin(relayed)
        finally:
            relayed.works -= 1
            self._release(relayed)

    def _count(self, relayed: Relayed) -> None:
        """Count a link until the primary has closed it, however long the primary takes."""
        if relayed not in self._counted:
            self.links.take(1)
            self._counted.add(relayed)
            self._paths[relayed.path] += 1
            self._idle_paths.pop(relayed.path, None)
        relayed.works += 1

    def _release(self, relayed: Relayed) -> None:
        """Count a link no more that is closed here and was never opened at the primary."""
        if relayed.up is None and not relayed.works and relayed not in self.relayed:
            self._gone(relayed)

    def _gone(self, relayed: Relayed) -> None:
        """The primary has no such link any more, and confirms none of its settlements."""
        if relayed in self._counted:
            self._counted.discard(relayed)
            self.links.give_back(1)
            self._leave_path(relayed.path)
        self._confirm_no_more(relayed, "The link was closed before the primary answered.")

    def _leave_path(self, path: str) -> None:
        """One link less needs the token of an entity."""
        self._paths[path] -= 1
        if self._paths[path]:
            return
        del self._paths[path]
        self._idle_paths[path] = None
        if len(self._idle_paths) > IDLE_PATHS_MAX:
            oldest, _ = self._idle_paths.popitem(last=False)
            if self._connection is not None:
                self._connection.forget_token(oldest)

    def _limit(self, relayed: Relayed) -> None:
        """Open a link of a node here after a while, though the primary has not answered."""
        if relayed.limit is None:
            loop = asyncio.get_running_loop()
            wait_s = self.unanswered.answer_s
            relayed.limit = loop.call_later(wait_s, self._open_without, relayed)

    def _open_without(self, relayed: Relayed) -> None:
        relayed.limit = None
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
        if len(txn_id) > ID_BYTES_MAX:
            return  # There is no such transaction.
        self.doomed.setdefault(txn_id, why)
        if len(self.doomed) > DOOMED_MAX:
            self.doomed.popitem(last=False)

    def flush(self) -> None:
        if self._connection is not None:
            self._connection.flush()

    def forget(self, relayed: Relayed) -> None:
        """The client's link is closed."""
        self.relayed.discard(relayed)
        if relayed.limit is not None:
            relayed.limit.cancel()
            relayed.limit = None
        self._release(relayed)
        node = relayed.node
        if node is not None and not any(one.node == node for one in self.relayed):
            self.nodes.pop(node, None)

    def expect(
        self, receiver: Relayed, session: LinkSession, numbers: list[tuple[int, int]]
    ) -> None:
        """Expect the primary to confirm these of its deliveries, with their numbers here.

        `BudgetExceeded` if too much of the client is not confirmed.
        """
        unconfirmed = receiver.unconfirmed
        new = [there for there, _ in numbers if there not in unconfirmed]
        self._settling_bytes.take(len(new) * SETTLING_BYTES)
        unconfirmed.update(new)
        waiting = self._settling.setdefault(session, {})
        for there, here in numbers:
            waiting[there] = receiver, here

    def _confirm_no_more(self, receiver: Relayed, text: str) -> None:
        """The primary can confirm none of a receiver's settlements any more."""
        unconfirmed = receiver.unconfirmed
        if unconfirmed and receiver.up is not None:
            waiting = self._settling.get(receiver.up.session, {})
            for number in unconfirmed:
                waiting.pop(number, None)
                receiver.not_confirmed(number, text)
            self._settling_bytes.give_back(len(unconfirmed) * SETTLING_BYTES)
            unconfirmed.clear()

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
            if isinstance(event, Detached | DetachAnswered):
                self._gone(owner)

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
            receiver.unconfirmed.discard(number)
            self._settling_bytes.give_back(SETTLING_BYTES)
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
        for relayed in [one for one in self._counted if one.up is not None]:
            self._confirm_no_more(relayed, text)
            self._gone(relayed)
        self._settling.clear()
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
    works = 0
    """How many attempts to open it at the primary are under way."""
    limit: asyncio.TimerHandle | None = None
    """Ends the wait for the primary, of a link of a node."""

    @property
    def path(self) -> str:
        """The entity that the gateway needs a token for."""
        return self.address.removesuffix(MANAGEMENT_SUFFIX)

    @property
    def unconfirmed(self) -> set[int]:
        """The primary's deliveries whose settlement it is to confirm; a receiver has some."""
        return set()

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
