"""The running broker of one namespace: engine, store, clients and their links, order of output.

Each loop tick: peers act on what arrived, the dispatcher delivers messages, then the output of all
peers waits for one group commit of everything that the tick changed. So no acknowledgement is on
the wire before its message is on disk.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Generator, Iterable
from functools import partial

from twinbus.amqp.events import Disposed
from twinbus.amqp.link import ReceiverLink, SenderLink
from twinbus.amqp.message import Sections
from twinbus.amqp.performatives import Coordinator, TransactionalState
from twinbus.broker.access import Admission
from twinbus.broker.damage import DamageReport
from twinbus.broker.descriptions import AuthorizationRule
from twinbus.broker.engine.engine_log import EngineLog
from twinbus.broker.engine.limits import CreditAccount
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.engine.queue import Queue
from twinbus.broker.engine.settlement import RequestedSettlement
from twinbus.broker.faults import FaultPlan
from twinbus.broker.ledger_view import BrokerView
from twinbus.broker.links import management
from twinbus.broker.links.client_limits import IdleLinks, LinkIdle
from twinbus.broker.links.context import (
    BrokerContext,
    LinkClient,
    LinkOwner,
    RefusalTracker,
    ReplyLink,
    Tokens,
    new_message_id,
)
from twinbus.broker.links.dispatch import Dispatcher
from twinbus.broker.links.peer import Peer
from twinbus.broker.links.receiving import DeliveringLink, settle
from twinbus.broker.links.requests import (
    REQUEST_BYTES_MAX,
    ManagementContext,
    ManagementRequest,
    RequestLink,
)
from twinbus.broker.links.sending import SendingLink
from twinbus.broker.links.token_watch import TokenWatch
from twinbus.broker.links.transactions import ClientTransactions
from twinbus.broker.links.turns import Turns
from twinbus.broker.profile import LAPTOP, ServiceProfile
from twinbus.broker.refusals import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityNotFound,
    QuotaExceeded,
    Refusal,
    check_count,
)
from twinbus.broker.sas import LISTEN, SEND, AcceptedToken, AccessPolicy
from twinbus.broker.storage.store import GroupCommit, Store
from twinbus.errors import StoreDamaged, StoreError
from twinbus.ledger import LedgerWriter
from twinbus.servicebus import conditions
from twinbus.servicebus.names import (
    BATCH_ALLOWANCE,
    MANAGEMENT_SUFFIX,
    TRANSFER_DESTINATION,
    entity_address,
)

log = logging.getLogger("twinbus.broker")

PENDING_BYTES_MAX = 32 * 1024 * 1024
"""Bytes that may wait for the disk before the broker stops reading from its clients."""

STORE_CHECK_S = 1.0

UNKNOWN = "not checked yet"

TIMER_FLOOR_S = 0.001
"""Timers fire at most this often; deadlines are whole milliseconds."""

SWEEPS_PER_IDLE_TIME = 10
"""So an idle link is detached at most a tenth of the idle time late."""


ADVANCE_MAX_MS = 10 * 365 * 86_400_000
"""Ten years: further on, times would leave the range of dates."""

ADVANCE_STEPS_MAX = 100_000
"""Moments at which something falls due that one advance visits in their order; then it jumps."""


class BrokerServer:
    def __init__(
        self,
        name: str,
        store: Store,
        rules: Iterable[AuthorizationRule],
        *,
        tokens: Callable[[], Iterable[AcceptedToken]] | None = None,
        require_token: bool = False,
        admission: Admission | None = None,
        fault_seed: int = 0,
        ledger: LedgerWriter | None = None,
        on_gone: Callable[[], None] = lambda: None,
        profile: ServiceProfile = LAPTOP,
        test_clock: bool = False,
    ) -> None:
        """`on_gone` is called once if the store is gone: the broker then serves nothing more.

        `test_clock` lets `advance` move the clock.
        """
        self._has_test_clock = test_clock
        self._ahead_ms = 0
        """How far the clock is ahead of the machine's."""
        self.name = name
        self.gone: str | None = None
        """Why the store is gone; None: it is there."""
        self._on_gone = on_gone
        self._checked_at_s = 0.0
        self.profile = profile
        per_s = profile.credits_per_s
        self.credits = None if per_s is None else CreditAccount(per_s)
        self.changing: set[str] = set()
        """Paths whose creation is under way (`ServiceProfile.creation_s`)."""
        self.view = None if ledger is None else BrokerView(ledger, name)
        self.store = store
        self.loop = asyncio.get_running_loop()
        self.peers: set[Peer] = set()
        self.turns = Turns(self.loop, gives_way=self._hands_over, once_packed=self._once_packed)
        self._watch = TokenWatch(self, tokens or tuple)
        if tokens is not None:
            self._watch.start()
        # Faults that strike by chance must strike the same way again, given the seed.
        self.faults = FaultPlan(random.Random(fault_seed).random)  # noqa: S311
        self.commit = GroupCommit(store, self.loop, on_failure=self._on_commit_failure)
        self.policy = AccessPolicy(
            rules,
            self.entity_rules,
            tokens or tuple,
            rules_below=self.rules_below,
            require_token=require_token,
            ahead_s=lambda: self._ahead_ms / 1000,
        )
        self.track = RefusalTracker(name, self.now_ms)
        self.admission = admission or Admission()
        self.engine_log = None if ledger is None else EngineLog()
        self.engine_failures = 0
        """Unexpected errors that the engine contained; each is in the log."""
        self._to_collect: dict[Peer, None] = {}
        self._tick_scheduled = self._reading_paused = self._is_closed = False
        self._no_space: str | None = UNKNOWN
        """Why the disk takes no more sends; checked once a tick."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self.damage = DamageReport(store.damaged)
        self.dispatcher = Dispatcher(self.wake)
        self.namespace = self._restore()
        """The engine. It and the dispatcher are replaced after a failed commit."""
        idle_s = profile.link_idle_s
        self._sweeping: asyncio.TimerHandle | None = None
        self._idle_links = None if idle_s is None else IdleLinks(idle_s)
        if idle_s is not None:
            self._sweep_idle_links(idle_s)
        self._arm_timer()
        if self.view is not None:
            held = {queue.path: len(queue.messages) for queue in self.namespace.queues()}
            self.view.opened(held)

    def resolve(self, path: str) -> object:
        return self.namespace.resolve(path)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def advance(self, by_ms: int) -> int:
        """Move the clock on; return how far it is ahead of the machine's, in milliseconds.

        What falls due on the way happens in the order of its times. Connections stay: what their
        clients send and hear has the machine's time.
        """
        if not self._has_test_clock:
            raise ArgumentInvalid(
                "the clock of this broker cannot be moved; start it with --test-clock, or"
                " EmbeddedBroker(test_clock=True)"
            )
        if not 1 <= by_ms <= ADVANCE_MAX_MS - self._ahead_ms:
            raise ArgumentOutOfRange(
                f"the clock moves on by 1 ms or more, and is at most {ADVANCE_MAX_MS} ms ahead; it"
                f" is {self._ahead_ms} ms ahead, and was to move by {by_ms} ms"
            )
        self._detach_idle_links()
        began_ms = self._ahead_ms
        target_ms = self.now_ms() + by_ms
        at_ms = self.now_ms() - 1
        for _ in range(ADVANCE_STEPS_MAX):
            due_ms = self.namespace.next_deadline_ms()
            if not due_ms or due_ms > target_ms:
                break
            at_ms = max(due_ms, at_ms + 1)
            self._ahead_ms = max(began_ms, self._ahead_ms + at_ms - self.now_ms())
            self.namespace.run_timers(at_ms)
        self._ahead_ms = began_ms + by_ms
        self.namespace.run_timers(self.now_ms())
        self._detach_idle_links()
        for peer in list(self.peers):
            peer.clock_moved()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.wake()
        return self._ahead_ms

    def peer(self) -> Peer:
        peer = Peer(self, EntityLinks(self))
        if self.gone is not None:
            peer.drop()
        return peer

    def collect(self, peer: Peer) -> None:
        self._to_collect[peer] = None
        self.wake()

    def wake(self) -> None:
        if not self._tick_scheduled:
            self._tick_scheduled = True
            self.loop.call_soon(self._tick)

    def _hands_over(self) -> bool:
        """Whether a step that hands changes to the writer is due."""
        return self._tick_scheduled or self.commit.is_due

    def _once_packed(self, fn: Callable[[], None]) -> bool:
        return self.commit.once_packed(fn)

    def check_store(self) -> None:
        """Cut off every client if the store is gone; checks the disk once a second at most."""
        now_s = self.loop.time()
        if self.gone is not None or now_s - self._checked_at_s < STORE_CHECK_S:
            return
        self._checked_at_s = now_s
        lost = self.store.lost()
        if lost is not None:
            self._lose(lost)

    def recheck_grants(self) -> None:
        """Close connections that came in by a key or a right that a rule no longer has."""
        for peer in list(self.peers):
            for grant in peer.grants:
                if not self.policy.still_holds(grant):
                    text = f"the rule {grant.rule_name!r} was changed; put a token of its new key"
                    peer.expel(conditions.UNAUTHORIZED, text)
                    log.warning("%s: closed %s: %s", self.name, peer.address, text)
                    break

    def require_space(self) -> None:
        """Raise `QuotaExceeded` while the disk is nearly full: even removals need some space."""
        if self._no_space is UNKNOWN:
            self._no_space = self.store.low_on_space()
        if self._no_space is not None:
            raise QuotaExceeded(self._no_space)

    def distrust(self, error: Exception) -> None:
        """Drop what is not committed and restore the engine: a step of it failed half-way."""
        log.error("%s: a transaction failed: %s", self.name, repr(error), exc_info=error)
        self.commit.distrust(error)

    async def close(self) -> None:
        """Commit what is pending, close the connections, close the store."""
        self._watch.close()
        for timer in (self._timer, self._sweeping):
            if timer is not None:
                timer.cancel()
        self._record_operations()
        try:
            await self.commit.close()
            if self.view is not None:
                self.view.closed()
        finally:
            self.turns.close()
            for peer in list(self.peers):
                peer.close(
                    conditions.CONNECTION_FORCED, "the broker is shutting down", linger=False
                )
            # A connection whose end comes later wakes a broker without a store.
            self._is_closed = True
            self.store.close()

    # The tick

    def _tick(self) -> None:
        self._tick_scheduled = False
        if self._is_closed:
            return
        self.check_store()
        if self.gone is not None:
            return
        self._no_space = UNKNOWN
        now_ms = self.now_ms()
        self.dispatcher.run(now_ms)
        self.damage.log_new(self.namespace)
        if self.engine_log is not None:
            self._record_operations()
        peers, self._to_collect = self._to_collect, {}
        for peer in peers:
            action = peer.collect_output(now_ms)
            if action is not None:
                self.commit.after_commit(action)
        # Timers and settled deliveries change the store too, though no client waits for an answer.
        self.commit.schedule()
        self._limit_pending()
        self._arm_timer()

    def _record_operations(self) -> None:
        """Write this tick's operations to the ledger once they are on disk, before any answer."""
        if self.engine_log is not None and self.view is not None:
            operations = self.engine_log.take()
            if operations:
                self.commit.after_commit(partial(self.view.write, operations))

    def _limit_pending(self) -> None:
        if self._reading_paused or self.commit.pending_bytes < PENDING_BYTES_MAX:
            return
        self._reading_paused = True
        for peer in self.peers:
            peer.pause_reading()
        self.commit.after_commit(self._read_again)

    def _read_again(self) -> None:
        self._reading_paused = False
        for peer in self.peers:
            peer.resume_reading()

    def _arm_timer(self) -> None:
        deadline_ms = self.namespace.next_deadline_ms()
        if not deadline_ms or (self._timer is not None and self._timer_at_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        wait_s = max(TIMER_FLOOR_S, (deadline_ms - self.now_ms()) / 1000)
        self._timer = self.loop.call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        # First, so that the next timer is armed whatever happens now.
        self.wake()
        self.namespace.run_timers(self.now_ms())

    def _sweep_idle_links(self, idle_s: float) -> None:
        self._detach_idle_links()
        self._sweeping = self.loop.call_later(
            idle_s / SWEEPS_PER_IDLE_TIME, self._sweep_idle_links, idle_s
        )

    def _detach_idle_links(self) -> None:
        idle_s = self.profile.link_idle_s
        if self._idle_links is None or idle_s is None:
            return
        links = {link: peer for peer in self.peers for link in peer.entity_links()}
        for link in self._idle_links.sweep(links, self.now_ms()):
            links[link].detach(link, LinkIdle(link, idle_s))

    # The engine

    def _restore(self) -> BrokerNamespace:
        namespace = BrokerNamespace(
            self.name,
            self.store,
            Tokens(),
            notify=self.dispatcher.ready,
            deleted=self._on_deleted,
            in_use=self._in_use,
            session_lost=self._on_session_lost,
            engine_log=self.engine_log,
            failed=self._on_engine_failure,
            profile=self.profile,
        )
        namespace.restore(self.store.recover())
        self.damage.log_new(namespace)
        return namespace

    def _on_engine_failure(self, path: str, doing: str, error: Exception) -> None:
        self.engine_failures += 1
        log.error("%s: %s: could not %s: %s", self.name, path, doing, repr(error), exc_info=error)

    def _on_deleted(self, path: str) -> None:
        for peer in self.peers:
            for link in peer.links_on(path):
                peer.detach(link, EntityNotFound.of(path, "it was deleted"))

    def _on_session_lost(self, holder: object) -> None:
        if isinstance(holder, DeliveringLink):
            # Later: it may be in the middle of a delivery.
            self.loop.call_soon(holder.session_lost)

    def _in_use(self, path: str) -> bool:
        return any(peer.links_on(path) for peer in self.peers)

    def entity_rules(self, path: str) -> Iterable[AuthorizationRule]:
        """The shared access rules of the entity at `path`; none if there is no such entity."""
        # For strangers too: it builds no refusal and no queue of a transfer dead-letter path.
        entity = self.namespace.find(path)
        return () if entity is None else getattr(entity.description, "authorization_rules", ())

    def rules_below(self) -> Iterable[tuple[str, AuthorizationRule]]:
        """The shared access rules of all entities, each with the path of its entity."""
        for entity in self.namespace.entities():
            for rule in getattr(entity.description, "authorization_rules", ()):
                yield entity.path, rule

    def _on_commit_failure(self, error: Exception) -> None:
        """Close every connection and restore the engine: the last changes were not stored.

        No client saw them: acknowledgements wait for commits.
        """
        lost = str(error) if isinstance(error, StoreDamaged) else self.store.lost()
        if lost is not None:
            self._lose(lost)
            return
        log.error("%s: %s; clients are cut off, nothing acknowledged is lost", self.name, error)
        self._cut_off(
            conditions.RESOURCE_LIMIT, f"what is not acknowledged may not be stored: {error}"
        )
        if self.engine_log is not None:
            # Its operations were never stored.
            self.engine_log.take()
        self._read_again()
        self.dispatcher = Dispatcher(self.wake)
        try:
            self.namespace = self._restore()
        except StoreError as unreadable:
            self._lose(str(unreadable))
            return
        self._arm_timer()

    def _lose(self, why: str) -> None:
        """Stop serving: what clients send could not be stored."""
        self.gone = why
        log.error("%s: the store is gone: %s; clients are cut off", self.name, why)
        self.commit.stop(StoreError(why))
        if self._timer is not None:
            self._timer.cancel()
        self._cut_off(conditions.CONNECTION_FORCED, f"the broker has lost its store: {why}")
        self._on_gone()

    def _cut_off(self, condition: str, description: str) -> None:
        for peer in list(self.peers):
            peer.abandon_links()
            peer.close(condition, description)
        self._to_collect.clear()


class EntityLinks:
    """What the broker does with a client's links; a `LinkOpener`."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._transactions = ClientTransactions(context)

    def receiving(
        self, client: LinkClient, link: SenderLink, address: str, now_ms: int
    ) -> DeliveringLink:
        granted_until_ms = client.grants.require(address, LISTEN, now_ms)
        queue = self._context.namespace.receive_source(address)
        count, limit = (
            self._context.dispatcher.receiver_count(queue),
            self._context.profile.receivers_max,
        )
        check_count(repr(queue.path), "concurrent receives", count, limit, "close some.")
        receiving = DeliveringLink(self._context, client, link, queue, address, granted_until_ms)
        link.owner = receiving
        receiving.attach(now_ms)
        return receiving

    def sending(
        self, client: LinkClient, link: ReceiverLink, address: str, now_ms: int
    ) -> LinkOwner:
        if isinstance(link.target, Coordinator):
            return self._transactions.coordinate(client, link, now_ms)
        granted_until_ms = client.grants.require(address, SEND, now_ms)
        via, destination = None, link.properties.get(TRANSFER_DESTINATION)
        if destination is not None:
            # The client sends to the destination through the entity that it attached to.
            via = self._context.namespace.send_target(address).path
            address = entity_address(str(destination))
            granted_until_ms = client.grants.require(address, SEND, now_ms)
        entity = self._context.namespace.send_target(address)
        sending = SendingLink(
            self._context, client, link, entity, address, granted_until_ms, self._transactions, via
        )
        sending.attach()
        return sending

    def requests(self, client: LinkClient, link: ReceiverLink, address: str) -> RequestLink:
        respond = partial(self._respond, client, address.lower())
        entity = self._context.namespace.find(address.lower().removesuffix(MANAGEMENT_SUFFIX))
        message_bytes = 0 if entity is None else entity.max_message_bytes
        node = RequestLink(
            self._context,
            client,
            link,
            address,
            respond,
            takes_transactions=True,
            limit_bytes=max(REQUEST_BYTES_MAX, message_bytes + BATCH_ALLOWANCE),
            read_ahead=management.read_in_steps,
        )
        node.attach()
        return node

    def replies(self, client: LinkClient, link: SenderLink, address: str) -> ReplyLink:
        link.accept()
        return ReplyLink(client.replies, link, address)

    def settle(self, event: Disposed, now_ms: int) -> None:
        if isinstance(event.state, TransactionalState):
            self._transactions.dispose(event, now_ms)
        else:
            settle(event, now_ms)

    def disconnected(self, client: LinkClient) -> None:
        self._transactions.close()

    def _respond(
        self,
        client: LinkClient,
        address: str,
        request: Sections | ManagementRequest,
        now_ms: int,
        txn_id: bytes | None = None,
    ) -> Generator[None, None, bytes]:
        broker = self._context

        def require(right: str) -> None:
            # On the node itself: some SDKs put their token for it, others for the whole entity.
            client.grants.require(address, right, now_ms)
            if right == SEND:
                broker.require_space()

        context = ManagementContext(
            namespace=broker.namespace,
            address=address.removesuffix(MANAGEMENT_SUFFIX),
            require=require,
            holder=client.holder,
            payload=broker.store.payload,
            new_message_id=new_message_id,
            track=broker.track,
            credits=broker.credits,
            settle=None if txn_id is None else partial(self._settle_in, client, address, txn_id),
        )
        return management.handle_in_steps(request, context, now_ms)

    def _settle_in(
        self,
        client: LinkClient,
        address: str,
        txn_id: bytes,
        queue: Queue,
        wanted: RequestedSettlement,
        now_ms: int,
    ) -> None:
        """Settle by a request that is part of a transaction."""
        right = address, partial(client.grants.require, address, LISTEN)
        try:
            self._transactions.settle(txn_id, queue, wanted, now_ms, right=right)
        except Refusal as refusal:
            self._transactions.doom(txn_id, refusal)
            raise
