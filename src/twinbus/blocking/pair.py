"""Two namespaces as a pair, for code without asyncio: the core's pair on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack
from weakref import WeakSet

from azure.core.paging import ItemPaged
from azure.servicebus import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

from twinbus.blocking.loop_thread import LoopThread
from twinbus.blocking.processor import Handler, Processor, processor_of
from twinbus.blocking.receiver import PairedReceiver
from twinbus.blocking.sender import PairedSender
from twinbus.blocking.transactions import Transaction, Transactions
from twinbus.errors import PairClosedError, PairingError
from twinbus.namespace.namespace import KEEP_ALIVE_OFF, Namespace, both_sides, bounds
from twinbus.options import SendAvailabilityOptions
from twinbus.pair import Pair as CorePair
from twinbus.pair import PairStatus, processors_of
from twinbus.pairing.lifecycle.closing import BlockingOnly
from twinbus.pairing.lifecycle.closing import PairSide as CoreSide
from twinbus.pairing.lifecycle.pair_methods import PairMethods
from twinbus.pairing.observing.events import BUFFER_MAX, PairEvent
from twinbus.pairing.observing.events import EventStream as CoreStream
from twinbus.pairing.receiving.settings import require_locks
from twinbus.pairing.sdk.direct_links import DirectLinks, SdkDirectLink
from twinbus.pairing.sending.own_direct_link import OWN_DIRECT_BYTES, open_direct_link
from twinbus.status.document import SideState

if TYPE_CHECKING:
    from twinbus.namespace.credentials import AwaitableCredential
    from twinbus.pairing.core.failover import Event
    from twinbus.pairing.core.processing import ProcessOptions
    from twinbus.pairing.observing.metrics import PairCollector
    from twinbus.pairing.sending.sender import PairedSender as CoreSender
    from twinbus.pairing.transacting.primary_side import PrimarySide as CorePrimary

T = TypeVar("T")


class PairSide:
    """One namespace of a pair, to be closed or faulted by hand."""

    def __init__(
        self, core: CoreSide, loop_thread: LoopThread, on_end: Callable[[], None] = lambda: None
    ) -> None:
        """`on_end` closes what is open outside the core, once the side is closed or faulted."""
        self.endpoint = core.endpoint
        self._core = core
        self._loop_thread = loop_thread
        self._on_end = on_end

    def __repr__(self) -> str:
        return repr(self._core)

    @property
    def state(self) -> SideState:
        """open, closed or faulted. A namespace that cannot be reached is open."""
        return self._core.state

    @property
    def reason(self) -> str:
        """Why it is not open; empty while it is."""
        return self._core.reason

    def close(self) -> None:
        """Close this side, as `twinbus.PairSide.close` does; idempotent."""
        self._loop_thread.finish(self._core.close)
        self._on_end()

    def fault(self, error: BaseException) -> None:
        """Declare that this side must not be used, as `twinbus.PairSide.fault` does."""
        self._loop_thread.call(lambda: self._core.fault(error))
        self._on_end()


class PrimarySide(PairSide):
    """The primary of a pair, to be closed or faulted by hand, and for transactions."""

    def __init__(
        self, core: CorePrimary, loop_thread: LoopThread, on_end: Callable[[], None]
    ) -> None:
        super().__init__(core, loop_thread, on_end)
        self._primary = core

    def transaction(self) -> Transaction:
        """A transaction of sends to the primary, for one `with` block.

        As `twinbus.PrimarySide.transaction`.
        """
        return Transaction(self._primary.transaction, self._loop_thread)

    def transactions(self) -> Transactions:
        """A connection to the primary for transactions, with receivers of its own."""
        return Transactions(self._loop_thread.call(self._primary.transactions), self._loop_thread)


class EventStream:
    """The events of a pair for one listener: `for event in stream`, on a thread of its own."""

    def __init__(self, core: CoreStream, loop_thread: LoopThread) -> None:
        self._core = core
        self._loop_thread = loop_thread

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PairEvent:
        try:
            try:
                return self._loop_thread.run(self._core.__anext__)
            except PairClosedError:
                # The loop has ended, so nothing can be awaited; the buffer still has its events.
                return _without_waiting(self._core.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Stop listening and drop the events in the buffer."""
        try:
            self._loop_thread.run(self._core.aclose)
        except PairClosedError:
            _without_waiting(self._core.aclose())


def _without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing left to await, without an event loop."""
    try:
        work.send(None)
    except StopIteration as result:
        value: T = result.value
        return value
    work.close()
    raise StopAsyncIteration


RECEIVERS_CLOSE_S: Final = 10.0
"""How long open receivers of the application may take to close: the SDK takes a second for each,
and cannot be interrupted."""


def pair_namespaces(
    primary: str | Namespace,
    secondary: str | Namespace,
    options: SendAvailabilityOptions | None = None,
) -> Pair:
    """Pair two namespaces for the `with` block, as `twinbus.pair_namespaces` does.

    Without a block, call `pair.start()` and at the end `pair.close()`.
    """
    given = SendAvailabilityOptions() if options is None else options
    return Pair(*both_sides(primary, secondary), given)


class Pair(BlockingOnly, PairMethods[ServiceBusReceiver, ItemPaged[str]]):
    """A primary and a secondary namespace; `pair_namespaces` makes one."""

    def __init__(
        self, primary: Namespace, secondary: Namespace, options: SendAvailabilityOptions
    ) -> None:
        self.options = options
        self._primary = primary
        self._core = CorePair(primary, secondary, options)
        self._loop_thread = LoopThread("twinbus-pair")
        self.primary = PrimarySide(self._core.primary, self._loop_thread, self._close_sync)
        self.secondary = PairSide(self._core.secondary, self._loop_thread)
        self._lock = threading.Lock()
        self._is_started = False
        self._receiving: ServiceBusClient | None = None
        self._sending: ServiceBusClient | None = None
        self._links: WeakSet[DirectLinks] = WeakSet()

    def __repr__(self) -> str:
        return repr(self._core)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Find or create the backlog queues, and start the syphon if the options want it.

        A start that fails or is interrupted closes the pair. A pair that was made before a fork
        is started after it, in the process that uses it.
        """
        with self._lock:
            if self._is_started:
                raise PairingError("the pair was started already")
            self._is_started = True
        try:
            self._loop_thread.run(self._core.start)
        except BaseException:
            self.close()
            raise

    def get_queue_sender(self, queue_name: str, **sdk_options: Any) -> PairedSender:
        """A sender to a queue of the primary, which survives the loss of the primary."""
        return self._sender("get_queue_sender", queue_name, sdk_options)

    def get_topic_sender(self, topic_name: str, **sdk_options: Any) -> PairedSender:
        """A sender to a topic of the primary, which survives the loss of the primary."""
        return self._sender("get_topic_sender", topic_name, sdk_options)

    def _sender(self, method: str, path: str, sdk_options: Mapping[str, Any]) -> PairedSender:
        core: CoreSender = self._loop_thread.call(
            lambda: getattr(self._core, method)(path, **sdk_options)
        )
        given = {**KEEP_ALIVE_OFF, **sdk_options, "client_identifier": core.client_identifier}

        def make() -> ServiceBusSender:
            with self._lock:
                if self._sending is None:
                    self._sending = self._sync_client(**bounds(self.options.attempt_timeout_s))
                client = self._sending
            made: ServiceBusSender = getattr(client, method)(core.entity_name, **given)
            return made

        loop_thread, limit_s = self._loop_thread, self.options.attempt_timeout_s
        if self.options.links == "own":
            primary, name = self._primary, core.entity_name
            links = DirectLinks(
                lambda: open_direct_link(primary, name, loop_thread.run, limit_s),
                loop_thread.loop,
                bytes_max=OWN_DIRECT_BYTES,
            )
        else:
            links = DirectLinks(lambda: SdkDirectLink.opened(make()), loop_thread.loop)
        self._links.add(links)
        return PairedSender(core, self._loop_thread, links)

    def process(
        self,
        entity_name: str,
        handler: Handler,
        *,
        subscription: str | None = None,
        **options: Unpack[ProcessOptions],
    ) -> Processor:
        """A processor that runs `handler` for each message of a queue, or of a subscription.

        As `twinbus.Pair.process`; the handler is a plain function and runs on a thread.
        """
        # Raises if the pair is closed.
        self._loop_thread.call(lambda: self._core.backlog_queues)
        core, names = self._core, (entity_name, subscription)
        return processor_of(
            core, names, handler, options, self._loop_thread, owner=processors_of(core), guard=True
        )

    @property
    def backlog_queues(self) -> tuple[str, ...]:
        """All available backlog queues, in the rotation or pulled."""
        return self._loop_thread.call(lambda: self._core.backlog_queues)

    def status(self) -> PairStatus:
        """The pair at this moment; it works also after the pair was closed or faulted."""
        try:
            return self._loop_thread.call(self._core.status)
        except PairClosedError:
            # The thread has ended, so nothing changes while this reads.
            return self._core.status()

    def events(self, *, buffer: int = BUFFER_MAX) -> EventStream:
        """A stream of every PairEvent from now on; it ends when the pair is closed.

        A listener that is slow loses the oldest events; EventsDropped has their number.
        """
        core = self._loop_thread.call(lambda: self._core.events(buffer=buffer))
        return EventStream(core, self._loop_thread)

    def on_event(self, callback: Callable[[PairEvent], None]) -> Callable[[], None]:
        """Call `callback` with every PairEvent, on the pair's thread; return what ends that.

        The callback must be quick, and must not call the pair: such a call would deadlock and
        raises.
        """
        end = self._loop_thread.call(lambda: self._core.on_event(callback))

        async def on_loop() -> None:
            end()

        return lambda: self._loop_thread.finish(on_loop)

    def collector(self, *, entities_max: int = 1_000, backlog_every: float = 0.0) -> PairCollector:
        """This pair's numbers for Prometheus: `REGISTRY.register(pair.collector())`.

        The arguments are those of `twinbus.Pair.collector`.
        """
        return self._loop_thread.call(
            lambda: self._core.collector(entities_max=entities_max, backlog_every=backlog_every)
        )

    def close(self) -> None:
        """Stop processors, pings and pumps, waiting for what is in flight; then close both sides.

        Idempotent, from any thread. Interrupted, it still closes everything before it raises. In a
        process that was forked after the pair was made it does nothing: the pair is the parent's.
        """
        if self._loop_thread.is_forked:
            return
        try:
            self._loop_thread.finish(self._core.close)
        finally:
            self._loop_thread.stop()
            self._close_sync()

    def _command(self, path: str, event: Event) -> None:
        self._loop_thread.call(lambda: self._core._command(path, event))

    def _paired_receiver(self, entity: str, path: str, sdk_options: dict[str, Any]) -> Any:
        options = dict(sdk_options)
        # It renews on threads of its own, through the receiver that the application has.
        renewer = options.pop("auto_lock_renewer", None)
        require_locks(renewer, **options)
        core = self._loop_thread.call(lambda: self._core._paired_receiver(entity, path, options))
        return PairedReceiver(core, self._loop_thread, renewer)

    def _receiver_client(self) -> ServiceBusClient:
        # Raises if the pair is closed.
        self._loop_thread.call(lambda: self._core.backlog_queues)
        with self._lock:
            if self._receiving is None:
                self._receiving = self._sync_client()
            return self._receiving

    def _sync_client(self, **options: Any) -> ServiceBusClient:
        credential = None
        fetching = self._primary.token_credential
        if fetching is not None and fetching.is_async:
            credential = _Fetched(fetching, self._loop_thread)
        return self._primary.sync_client(credential, **options)

    def _close_sync(self) -> None:
        """Close what is open to the primary beside the core."""
        if self._loop_thread.is_forked:
            # Closing them would write to the parent's connections.
            return
        for links in tuple(self._links):
            links.close(self.options.attempt_timeout_s)
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            closing = threading.Thread(target=receiving.close, name="twinbus-close", daemon=True)
            closing.start()
            closing.join(RECEIVERS_CLOSE_S)


class _Fetched:
    """A credential for asyncio, as the sync SDK's receivers use it."""

    def __init__(self, credential: AwaitableCredential, loop_thread: LoopThread) -> None:
        self._credential = credential
        self._loop_thread = loop_thread
        self.token_type = credential.token_type

    def get_token(self, *scopes: str, **options: Any) -> Any:
        return self._loop_thread.run(lambda: self._credential.get_token(*scopes, **options))
