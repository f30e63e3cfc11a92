"""One side of a receiver: keeps a link to its entity open for as long as the receiver lives.

    side = ReceivingSide(Side.PRIMARY, connection, LinkSettings("orders"), owner)
    side.start()
    await side.first_result()   # None, or why the first link was not opened
    side.want(10)               # up to 10 deliveries go to owner.on_deliveries
    await side.settle(delivery, token, COMPLETE)
    await side.close(5.0)

A link that ends, or falls silent (watchdog.py), is opened again with a growing, jittered pause
(reopening.py).
A session is opened again under its own id, and only if the application holds no unsettled message
of it: otherwise its lock is lost, and the side ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, TypeVar
from uuid import UUID

from twinbus.client.connection import MACHINE, Environment
from twinbus.client.links import UpstreamConnection
from twinbus.client.lock_requests import settle_by_token
from twinbus.client.outcomes import SettlingOutcome
from twinbus.client.receiving import NO_SESSION, Delivery, ReceivingLink, SessionChoice
from twinbus.client.request_node import ConnectionLost, LinkEnded
from twinbus.errors import error_text
from twinbus.pairing.core.sides import Side
from twinbus.pairing.receiving.mark_watch import READ_MARK_S, MarkWatch, NotReadable, ReadMark
from twinbus.pairing.receiving.reopening import PAUSE_MAX_S, ReopenPauses
from twinbus.pairing.receiving.settlement import MessageSettlement
from twinbus.pairing.receiving.watchdog import DRAIN_ANSWER_S, UNSETTLED_S, LinkCheck, Watchdog
from twinbus.servicebus import conditions
from twinbus.servicebus.failures import FailureMeaning, NamespaceFailure
from twinbus.status.receiving import (
    CLOSED,
    NOT_READ,
    OPEN,
    RECONNECTING,
    WAITING,
    ReceivingSideStatus,
)

log = logging.getLogger("twinbus.receiving")

T = TypeVar("T")

LINGER_S: Final = 0.05
"""How long credit stays after the last receive call: the next call of a loop finds it there."""

LOOK_S: Final = 5.0
"""How often a side looks at its link: credit that was granted meanwhile may be due for a check."""

CLOSE_S: Final = 5.0
GIVE_UP_S: Final = 0.5
"""Time for a link to drain, release and detach, and for one that does not answer."""

SESSION_WAIT_S: Final = 60.0
"""How long a receiver of the next session waits for one, unless its max_wait_time says so."""

REQUEST_WAITS_S: Final = (0.2, 0.8, 1.6)
"""Pauses between the attempts of a request that a lost connection ended, as the SDK makes them."""

GIVEN_UP: Final = "who settled it waited no longer for an answer"
"""Error in the ledger of a message whose settlement was given up; it may come again."""

SETTLE_ANSWERS: Final = 2
"""A settlement ends after this many times the time of one answer: one on its link, one by its lock
token. A program that settles one message after another must not wait longer for a side that hangs:
the other side has messages for it."""


def is_refusal(error: Exception) -> bool:
    """Whether the entity answered that this receiver cannot have it, and waiting does not help."""
    if not isinstance(error, NamespaceFailure):
        return False
    return not error.meaning.retried and error.meaning is not FailureMeaning.OTHER


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkSettings:
    """What a link receives, and how."""

    path: str
    receive_and_delete: bool = False
    session: str | SessionChoice = NO_SESSION
    session_wait_s: float = SESSION_WAIT_S
    client_id: str | None = None
    gateway_client: str | None = None
    """The client of a gateway that receives, for the ledger."""


class SideOwner(Protocol):
    """The receiver that a side belongs to."""

    def on_deliveries(self, side: ReceivingSide, run: list[Delivery]) -> None: ...

    def on_opened(self, side: ReceivingSide, link: ReceivingLink) -> None: ...

    def on_failed(self, side: ReceivingSide) -> None:
        """The link was not opened, or it ended."""

    def buffered_of(self, side: ReceivingSide) -> int:
        """How many messages of the side wait to be handed out."""

    def give_back(self, side: ReceivingSide) -> None:
        """Release what the side brought and was not handed out."""


class ReceivingSide:
    """The links of one receiver to one namespace, one after another."""

    def __init__(
        self,
        side: Side,
        connection: UpstreamConnection,
        settings: LinkSettings,
        owner: SideOwner,
        *,
        read_mark: ReadMark | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        """`read_mark` raises why the entity must not be read; None: it needs no mark."""
        self.side = side
        self.connection = connection
        self.settings = settings
        self.link: ReceivingLink | None = None
        self.error: Exception | None = None
        """Why there is no link now; None: one is open, or the first one is being opened."""
        self.has_ended = False
        """No other link is opened: the side was closed, or the lock of its session is lost."""
        self.delivered = 0
        self.reopened = 0
        """Links that ended or fell silent and were followed by another."""
        self.silent = 0
        """How many of these the watchdog found silent."""
        self._silent_link: ReceivingLink | None = None
        """The last link that did not answer a drain."""
        self._lost_at: float | None = None
        """Since when there is no link because one ended or was not opened."""
        self._owner = owner
        self._environment = environment
        self._loop = connection.loop
        self._mark = MarkWatch(read_mark, self._loop)
        self._watchdog = Watchdog(environment.chance())
        self._pauses = ReopenPauses(environment.chance)
        self._pause_s = 0.0
        """How long to wait before the next link is opened."""
        self._wanted = 0
        self._idle_since = 0.0
        self._is_draining = False
        self._checking = asyncio.Lock()
        """Held while credit is drained and granted: one drain must not end another."""
        self._unsettled: dict[Delivery, float] = {}
        """What the application holds, and since when."""
        self._settling = 0
        self._settled = asyncio.Event()
        self._changed = asyncio.Event()
        self._retried = asyncio.Event()
        self._first: asyncio.Future[Exception | None] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{self.side} side of {self.settings.path}: {self.state}>"

    @property
    def state(self) -> str:
        """One of RECEIVING_STATES."""
        if self.has_ended:
            return CLOSED
        if self.link is not None and self.link.is_open:
            return OPEN
        if self.error is None:
            return WAITING
        return NOT_READ if isinstance(self.error, NotReadable) else RECONNECTING

    def status(self) -> ReceivingSideStatus:
        """This side now, and what it has done so far. From any thread."""
        state, lost_at, error = self.state, self._lost_at, self.error
        lasts_s = None
        if state == RECONNECTING and lost_at is not None:
            lasts_s = round(max(0.0, self._loop.time() - lost_at), 1)
        has_reason = state in (RECONNECTING, NOT_READ)
        return ReceivingSideStatus(
            states={state: 1},
            since_s=lasts_s,
            error=error_text(error) if has_reason and error is not None else "",
            delivered=self.delivered,
            reopened=self.reopened,
            silent=self.silent,
        )

    @property
    def is_session(self) -> bool:
        return self.settings.session is not NO_SESSION

    def start(self) -> None:
        name = f"receive from the {self.side}'s {self.settings.path}"
        self._task = asyncio.create_task(self._run(), name=name)

    def retry(self) -> None:
        """Open a link that is down now, and not after a pause: the namespace answers again."""
        if self.link is None:
            self._retried.set()

    async def first_result(self) -> Exception | None:
        """Wait for the first attempt to open a link; return why it failed."""
        return await asyncio.shield(self._first)

    # Credit

    @property
    def credit(self) -> int:
        return 0 if self.link is None else self.link.credit

    @property
    def outstanding(self) -> int:
        """Deliveries that may come, also if a check has taken their credit for a moment."""
        return max(self.credit, self._wanted)

    def want(self, credit: int) -> None:
        """Let up to `credit` deliveries come; 0 takes back what was granted before."""
        link, self._wanted = self.link, credit
        if link is None or not link.is_open or self._is_draining:
            return  # Then it is granted afterwards.
        if credit:
            self._grant(link)
        elif link.credit:
            self._idle_since = self._loop.time()
            self._changed.set()

    async def drain(self, credit: int = 0) -> bool:
        """Let up to `credit` deliveries come that are ready, and take all other credit back.

        Return whether the link answered. One that did not is replaced.
        """
        async with self._checking:
            link, self._wanted = self.link, 0
            if link is None or not link.is_open or self.has_ended:
                return False
            is_gone = await self._checked(link, LinkCheck.DRAIN, credit)
        self._changed.set()  # More may be wanted by now, or the link is gone.
        return not is_gone

    def _grant(self, link: ReceivingLink) -> None:
        if self._wanted > link.credit:
            link.grant(self._wanted)
        self._watchdog.credit_changed(self._loop.time(), is_out=link.credit > 0)

    # The links

    async def _run(self) -> None:
        try:
            while not self.has_ended:
                try:
                    await self._open_until_it_works()
                    if self.link is not None:
                        await self._attend(self.link)
                except Exception as error:
                    # A receiver must not fall silent because of a mistake of ours.
                    log.exception("%r: a fault of Twinbus; another link is opened", self)
                    await self._after_fault(error)
        finally:
            if not self._first.done():
                self._first.set_result(self.error or ConnectionLost("the receiver was closed"))

    async def _after_fault(self, error: Exception) -> None:
        link, self.link = self.link, None
        if link is not None:
            await link.close(GIVE_UP_S)
        self._pause_s = PAUSE_MAX_S
        self._failed(error)

    async def _open_until_it_works(self) -> None:
        while not self.has_ended:
            await self._pause()
            # Not later: a namespace that is back during an attempt must not wait for a pause.
            self._retried.clear()
            try:
                await self._mark.require()
                await self._open()
            except (NamespaceFailure, TimeoutError) as error:
                self._pause_s = self._pauses.after_failure()
                if isinstance(error, NotReadable):
                    self._pause_s = READ_MARK_S * (0.5 + 0.5 * self._environment.chance())
                if self._ends_session(error):
                    self.has_ended = True
                self._failed(error)
            else:
                self._pause_s = 0.0
                return

    async def _pause(self) -> None:
        """Wait before the next link; `retry` ends the pause, and those after it begin short."""
        if not self._pause_s:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s):
                await self._retried.wait()
        if self._retried.is_set():
            self._pauses.restart()

    async def _open(self) -> None:
        settings = self.settings
        link = ReceivingLink(
            self.connection,
            settings.path,
            on_deliveries=self._on_deliveries,
            on_ended=self._on_ended,
            receive_and_delete=settings.receive_and_delete,
            session=settings.session,
            client_id=settings.client_id,
            gateway_client=settings.gateway_client,
            environment=self._environment,
        )
        await link.open(settings.session_wait_s if self.is_session else self.connection.answer_s)
        self.link, self.error, self._lost_at = link, None, None
        if link.session_id is not None:
            # Another session than this one would surprise the application.
            self.settings = replace(settings, session=link.session_id)
        now = self._loop.time()
        self._watchdog.opened(now)
        self._pauses.opened(now)
        self._owner.on_opened(self, link)
        if not self._first.done():
            self._first.set_result(None)

    def _failed(self, error: Exception) -> None:
        if type(error) is not type(self.error) or str(error) != str(self.error):
            # Once for each reason: a namespace that is down for a day must not fill the log.
            log.warning("%s: %s: %s", self.settings.path, self.side, error_text(error))
        self.error = error
        if self._lost_at is None:
            self._lost_at = self._loop.time()
        if not self._first.done():
            self._first.set_result(error)
        self._owner.on_failed(self)

    def _ends_session(self, error: Exception) -> bool:
        """Whether a session is not opened again: it is not free, or nothing was ever received."""
        if not self.is_session:
            return False
        condition = getattr(error, "condition", "")
        is_taken = condition in (conditions.SESSION_TAKEN, conditions.SESSION_LOCK_LOST)
        return is_taken or bool(self._held) or isinstance(self.settings.session, SessionChoice)

    async def _attend(self, link: ReceivingLink) -> None:
        """Grant, drain and check one link until it ends or is replaced."""
        while self.link is link and link.is_open and not self.has_ended:
            if (error := await self._mark.still_holds()) is not None:
                self._failed(error)
                self._owner.give_back(self)
                await link.close(CLOSE_S)
                break
            async with self._checking:
                check = self._due_check(link)
                if check is not LinkCheck.NOTHING:
                    if await self._checked(link, check):
                        return
                    continue
            await self._wait(link)
        if self.link is link and not self.has_ended:  # At the end, `close` needs the link.
            self.link = None

    def _due_check(self, link: ReceivingLink) -> LinkCheck:
        """Grant what is wanted; return whether credit is to be taken back or the link checked."""
        now = self._loop.time()
        if self._wanted:
            self._grant(link)
        elif link.credit and now >= self._idle_since + LINGER_S:
            return LinkCheck.DRAIN
        return self._watchdog.check(now, unsettled=self._locked, is_session=self.is_session)

    async def _wait(self, link: ReceivingLink) -> None:
        """Wait until something is to be done: credit, a check, or the end of the link."""
        until = self._loop.time() + LOOK_S
        if self._watchdog.check_at is not None:
            until = min(until, self._watchdog.check_at)
        if not self._wanted and link.credit:
            until = min(until, self._idle_since + LINGER_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._changed.wait()
        self._changed.clear()

    async def _checked(self, link: ReceivingLink, check: LinkCheck, ready: int = 0) -> bool:
        """Drain a link, and replace it if it does not answer; return whether it is gone.

        Without credit that is wanted, up to `ready` deliveries may come.
        """
        # A check lets the entity send what it has; credit that no call wants is taken back.
        credit, delivered = link.credit if self._wanted else ready, self.delivered
        self._is_draining = True
        try:
            is_answered = await link.drain(DRAIN_ANSWER_S, credit)
        finally:
            self._is_draining = False
        now = self._loop.time()
        self._watchdog.credit_changed(now, is_out=False)
        if not is_answered and link.is_open:
            check = self._watchdog.not_answered(unsettled=self._locked, is_session=self.is_session)
            if check is LinkCheck.REPLACE:
                self._silent_link = link
                self._watchdog.ended()
                if self.connection.heard_at < now - DRAIN_ANSWER_S:
                    self.connection.drop(f"it sent nothing for {DRAIN_ANSWER_S:g} s")
        brought_nothing = self.delivered == delivered
        if check is LinkCheck.REPLACE and link.is_open and (brought_nothing or not is_answered):
            await self._replace(link, is_answered=is_answered)
        elif credit and brought_nothing:
            self._watchdog.checked(now)
        return not link.is_open

    async def _replace(self, link: ReceivingLink, *, is_answered: bool) -> None:
        if is_answered:
            self._watchdog.replaced()
        else:
            self.reopened += 1
            self.silent += 1
        await link.close(CLOSE_S if is_answered else GIVE_UP_S)
        if self.link is not link:
            return
        self.link = None
        if not is_answered and not self.has_ended:
            # A link that is being closed does not say that it has ended.
            self._failed(LinkEnded(f"{self.settings.path}: the link fell silent"))

    def _on_deliveries(self, run: list[Delivery]) -> None:
        self.delivered += len(run)
        self._wanted = max(0, self._wanted - len(run))
        now = self._loop.time()
        self._watchdog.delivered(now)
        self._pauses.delivered()
        if not run[0].link.credit:
            self._watchdog.credit_changed(now, is_out=False)
        self._owner.on_deliveries(self, run)

    def _on_ended(self, link: ReceivingLink, error: Exception) -> None:
        if link is not self.link:
            return
        now = self._loop.time()
        self.link = None
        self.reopened += 1
        self.silent += link is self._silent_link
        self._watchdog.credit_changed(now, is_out=False)
        self._watchdog.ended()
        self._mark.link_ended()
        self._pause_s = self._pauses.after_end(now)
        # The messages that the application holds cannot be settled any more, nor their order kept.
        # Of a session whose lock expired another receiver may have got the next ones already.
        is_lost = getattr(error, "condition", "") == conditions.SESSION_LOCK_LOST
        self.has_ended = self.has_ended or (self.is_session and (self._held > 0 or is_lost))
        self._failed(error)
        self._changed.set()

    # Settlement

    @property
    def _held(self) -> int:
        """Messages that the application holds; those beyond the longest lock do not count."""
        since = self._loop.time() - UNSETTLED_S
        for delivery in [one for one, at in self._unsettled.items() if at < since]:
            del self._unsettled[delivery]
        return len(self._unsettled)

    @property
    def _locked(self) -> int:
        """Messages that the application holds or is about to get."""
        return self._held + self._owner.buffered_of(self)

    def release(self, delivery: Delivery) -> None:
        """Give back what is not handed out: others get it at once."""
        delivery.link.release_all([delivery])

    def handed_out(self, delivery: Delivery) -> None:
        """The application got this message and will settle it."""
        if not delivery.settled:
            self._unsettled[delivery] = self._loop.time()

    def was_settled(self, delivery: Delivery) -> None:
        """The application has settled this message on its link."""
        self._unsettled.pop(delivery, None)

    def settle(
        self, delivery: Delivery, token: UUID | None, outcome: SettlingOutcome
    ) -> asyncio.Future[None]:
        """Begin to settle a message; the future gets the result, as with `begin_settling`."""
        answer: asyncio.Future[None] = self._loop.create_future()
        self.begin_settling(MessageSettlement(answer, outcome, delivery, token))
        return answer

    def begin_settling(self, settlement: MessageSettlement) -> None:
        """Settle on the link that delivered, or else by lock token.

        The answer is None, or LockLost, RequestRefused, ConnectionLost or TimeoutError.
        """
        # The link bounds its own part: a timer for each settlement would cost as much as the rest.
        settlement.ends_at = self._loop.time() + SETTLE_ANSWERS * self.connection.answer_s
        self._settling += 1
        delivery = settlement.delivery
        if delivery is not None and delivery.outcome is None and delivery.link.is_open:
            answered = partial(self._answered, settlement)
            delivery.link.settle(delivery, settlement.outcome, answered)
        else:
            self._begin_by_token(settlement)

    def _answered(self, settlement: MessageSettlement, error: Exception | None) -> None:
        """The link's answer; without one the token decides, if the caller still waits."""
        if (
            error is not None
            and isinstance(error, LinkEnded | TimeoutError)
            and not settlement.answer.done()
        ):
            log.debug("%s: settled by lock token: %s", self.settings.path, error)
            self._begin_by_token(settlement)
            return
        self._end_settling(settlement)
        settlement.end(error)

    def _begin_by_token(self, settlement: MessageSettlement) -> None:
        task = asyncio.create_task(self._settle_by_token(settlement))
        # It keeps the task, and ends it if the caller gives up.
        settlement.answer.add_done_callback(lambda answer: answer.cancelled() and task.cancel())

    def _end_settling(self, settlement: MessageSettlement) -> None:
        self._settling -= 1
        if self._closing is not None:
            self._settled.set()
        if settlement.delivery is not None:
            self._unsettled.pop(settlement.delivery, None)

    async def _settle_by_token(self, settlement: MessageSettlement) -> None:
        error, delivery = None, settlement.delivery
        try:
            async with asyncio.timeout_at(settlement.ends_at):
                await self._request_settlement(settlement)
        except asyncio.CancelledError:
            if delivery is not None:
                delivery.link.left(delivery, GIVEN_UP)
            self._end_settling(settlement)
            raise
        except Exception as failed:  # noqa: BLE001  # it belongs to the one who waits
            error = failed
            if delivery is not None and isinstance(failed, ConnectionLost | TimeoutError):
                # Without a connection there is no request, which would be recorded.
                delivery.link.left(delivery, error_text(failed))
        self._end_settling(settlement)
        settlement.end(error)

    async def _request_settlement(self, settlement: MessageSettlement) -> None:
        delivery, token, names = settlement.delivery, settlement.token, settlement.names
        held, state = self.link, None
        if delivery is not None:
            token, names = token or delivery.lock_token, delivery.names
            held, state = delivery.link, delivery.ledger_state
        if token is None:
            raise LinkEnded(f"{self.settings.path}: the link ended, and there is no lock token")
        ask = partial(
            settle_by_token,
            *(self.connection, self.settings.path, token, settlement.outcome),
            session=held if self.is_session else None,
            names=names,
            ledger_state=state,
        )
        await self.request(ask)

    async def request(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Make a request to the namespace; try again if the connection was lost meanwhile."""
        for wait_s in REQUEST_WAITS_S:
            try:
                return await ask()
            except ConnectionLost:
                if self.has_ended:
                    raise
                await asyncio.sleep(wait_s * (0.5 + 0.5 * self._environment.chance()))
        return await ask()

    # The end

    async def close(self, buffered: list[Delivery], timeout_s: float = CLOSE_S) -> None:
        """Release what was not handed out, let settlements end, drain and detach. Idempotent."""
        for delivery in buffered:
            self.release(delivery)
        if self._closing is None:
            self.has_ended = True
            self._changed.set()
            self._closing = asyncio.create_task(self._close(timeout_s))
        await asyncio.shield(self._closing)

    async def _close(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._settling:
                    self._settled.clear()
                    await self._settled.wait()
        if self._task is not None:
            # It may be opening a link; one that is open by then is closed with the others.
            self._task.cancel()
            await asyncio.wait({self._task})
        link, self.link = self.link, None
        for delivery in self._unsettled:
            delivery.link.left(delivery)
        if link is not None:
            await link.close(timeout_s)
