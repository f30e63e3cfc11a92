"""Two namespaces as processes, and every fault of the fault table done to them, once.

Each fault has an entity of its own, and what is known of one entity says nothing of another; so
most of them happen at the same time.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import EntityStatus

from tests.contract.pairs import quick, until
from tests.end_to_end.fault_table import HASTY, RETURNS, ROWS, UNLIMITED
from tests.official_sdk import ClosedTogether, Faults, administration, client, sas_token
from tests.processes import ServedBroker
from twinbus import Namespace, SendAvailabilityOptions, pair_namespaces
from twinbus.pair import Pair
from twinbus.servicebus.names import BACKLOG_MARK

PATIENCE_S = 30.0
HASTE_S = 1.0
FAILOVER_S = 5.0
ATTEMPT_S = 4.0
"""Several times what opening a link takes, so that a busy machine does not look like an outage."""
TOKEN_LIFE_S = 12.0
FULL = {"kind": "refuse_send", "condition": "amqp:resource-limit-exceeded"}
TOO_LARGE_BYTES = 400_000
"""A queue takes 256 KB."""
OPTIONS = quick(
    backlog_queue_count=3,
    failover_interval=FAILOVER_S,
    attempt_timeout=ATTEMPT_S,
    # The first retry comes later than the hasty give up, and sooner than the failover; the last
    # comes after it.
    retry_total=5,
    retry_backoff_factor=0.7,
    retry_backoff_max=1.4,
)
DIVERTING = replace(OPTIONS, divert_on={"disabled", "full", "throttled"})
DETECTING = ("drop-after-once-detected", "drop-after-detected", "drop-after-hasty")
SENDERS_MAX = 100
"""By then one of them has chosen a given queue of three, unless chance is out to get us."""


PEEKING = 16
"""Queues that are looked into side by side: opening a receiver is mostly waiting."""


@dataclass
class Outcome:
    """What a caller saw, and what the entity was right after."""

    message_id: str
    sees: str
    state: str
    error: BaseException | None
    took_s: float
    stored: Counter[str] = field(default_factory=Counter)


class FaultWorld:
    """Runs everything; `outcomes` has a line for each key of the table."""

    def __init__(self, primary: ServedBroker, secondary: ServedBroker) -> None:
        self.primary, self.secondary = primary, secondary
        self.outcomes: dict[str, Outcome] = {}
        self.pulled: dict[str, list[str]] = {}
        """The backlog queues that were pulled, by the key of the fault that pulled them."""

    async def run(self) -> None:
        self._create_queues()
        async with self._pair("contoso") as pair:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._faults_of_entities(pair))
                group.create_task(self._diverted_by_option())
                group.create_task(self._bad_backlog_queues())
                group.create_task(self._expired_tokens())
            await self._hang(pair)
            await self._kill_primary(pair)
            await self._without_secondary(pair)
        await asyncio.to_thread(self.primary.restart)
        await asyncio.to_thread(self._look_where_messages_are)

    async def run_short(self) -> None:
        """The faults that need no process to end."""
        self._create_queues()
        async with self._pair("contoso") as pair, asyncio.TaskGroup() as group:
            group.create_task(self._faults_of_entities(pair))
            group.create_task(self._diverted_by_option())
            group.create_task(self._expired_tokens())
        # In the long run the restart of the namespaces ends the faults.
        await asyncio.to_thread(Faults(self.primary.connection_string()).clear)
        await asyncio.to_thread(self._look_where_messages_are)

    def _create_queues(self) -> None:
        with administration(self.primary.connection_string()) as admin:
            for row in ROWS:
                detects = row.key in DETECTING
                admin.create_queue(row.key, requires_duplicate_detection=detects)

    @asynccontextmanager
    async def _pair(
        self, label: str, primary: str | None = None, options: SendAvailabilityOptions = OPTIONS
    ) -> AsyncIterator[Pair]:
        first = primary or self.primary.connection_string()
        sides = (
            Namespace.from_connection_string(first, label),
            Namespace.from_connection_string(self.secondary.connection_string()),
        )
        async with pair_namespaces(*sides, options) as pair:
            yield pair

    async def _send(self, pair: Pair, key: str, sender: Any = None, number: int = 1) -> None:
        """Send the row's message as its caller would; keep what came of it."""
        row = next(row for row in ROWS if row.key == key)
        sender = sender or pair.get_queue_sender(key)
        message_id = f"{key}-{number}"
        body = b"x" * (TOO_LARGE_BYTES if key == "too-large" else 1)
        message = ServiceBusMessage(body, message_id=message_id)
        began, sees, error = time.monotonic(), RETURNS, None
        try:
            timeout_s = {HASTY: HASTE_S, UNLIMITED: None}.get(row.caller, PATIENCE_S)
            await sender.send_messages(message, timeout=timeout_s)
        except Exception as caught:  # noqa: BLE001  # the test looks at each
            sees, error = type(caught).__name__, caught
        took_s = time.monotonic() - began
        state = pair.status().entities[sender.entity_name].state
        self.outcomes[key] = Outcome(message_id, sees, state, error, took_s)

    async def _opened(self, pair: Pair, key: str) -> Any:
        """A sender whose link is open, so that haste is not used up by opening it."""
        sender = pair.get_queue_sender(key)
        await sender.send_messages(ServiceBusMessage("before", message_id="before"))
        return sender

    async def _faults_of_entities(self, pair: Pair) -> None:
        always: dict[str, dict[str, Any]] = {
            "drop-before-once": {"kind": "drop_before_commit", "count": 1},
            "drop-before": {"kind": "drop_before_commit"},
            "drop-before-hasty": {"kind": "drop_before_commit"},
            "drop-after-once": {"kind": "drop_after_commit", "count": 1},
            "drop-after-once-detected": {"kind": "drop_after_commit", "count": 1},
            "drop-after-detected": {"kind": "drop_after_commit"},
            "drop-after-hasty": {"kind": "drop_after_commit"},
            "throttle-once": {"kind": "throttle", "count": 1},
            "throttle": {"kind": "throttle"},
            "full": FULL,
            "hang": {"kind": "hang"},
            "internal-error": {"kind": "refuse_send"},
        }
        faults = Faults(self.primary.connection_string())
        async with asyncio.TaskGroup() as group:
            for key, fault in always.items():
                group.create_task(self._with_fault(pair, key, faults, fault))
            group.create_task(self._slow_attach(pair, "slow-attach-hasty", faults))
            group.create_task(self._send(pair, "too-large"))
            for key in ("deleted", "disabled"):
                group.create_task(self._gone(pair, key))
                group.create_task(self._gone_meanwhile(pair, f"{key}-meanwhile", faults))

    async def _diverted_by_option(self) -> None:
        faults = Faults(self.primary.connection_string())
        async with (
            self._pair("contoso", options=DIVERTING) as pair,
            asyncio.TaskGroup() as group,
        ):
            for key, fault in {"throttle": {"kind": "throttle"}, "full": FULL}.items():
                group.create_task(self._with_fault(pair, f"{key}-diverted", faults, fault))
            group.create_task(self._gone(pair, "disabled-diverted"))
            meanwhile = "disabled-meanwhile-diverted"
            group.create_task(self._gone_meanwhile(pair, meanwhile, faults, "failed over"))

    async def _with_fault(
        self, pair: Pair, key: str, faults: Faults, fault: dict[str, Any]
    ) -> None:
        sender = await self._opened(pair, key)
        await asyncio.to_thread(lambda: faults.add(entity=key, **fault))
        await self._send(pair, key, sender)

    async def _slow_attach(self, pair: Pair, key: str, faults: Faults) -> None:
        delay_ms = int(ATTEMPT_S * 1_000 * 0.8)
        await asyncio.to_thread(lambda: faults.add("delay", entity=key, delay_ms=delay_ms, count=1))
        await self._send(pair, key)

    async def _gone(self, pair: Pair, key: str) -> None:
        await asyncio.to_thread(self._remove, key)
        await self._send(pair, key)

    async def _gone_meanwhile(
        self, pair: Pair, key: str, faults: Faults, state: str = "unusable"
    ) -> None:
        number = await asyncio.to_thread(lambda: faults.add("hang", entity=key))
        sender = pair.get_queue_sender(key)
        await sender.send_messages(ServiceBusMessage("before", message_id="before"), timeout=30)
        await asyncio.to_thread(self._remove, key)
        await asyncio.to_thread(faults.remove, number)
        found = "Disabled" if key.startswith("disabled") else ""
        await until(lambda: found in pair.status().entities[key].last_error)
        await until(lambda: pair.status().entities[key].state == state)
        await self._send(pair, key, sender)

    def _remove(self, key: str) -> None:
        with administration(self.primary.connection_string()) as admin:
            if key.startswith("deleted"):
                admin.delete_queue(key)
            else:
                queue = admin.get_queue(key)
                queue.status = EntityStatus.DISABLED
                admin.update_queue(queue)

    async def _bad_backlog_queues(self) -> None:
        """One after the other: the first queue is disabled, then the second does not answer."""
        async with self._pair("bad") as pair:
            first, second, _ = pair.backlog_queues
            await asyncio.to_thread(self._disable_backlog_queue, first)
            await self._until_pulled(pair, "bad-backlog-queue", first)
            faults = Faults(self.secondary.connection_string())
            await asyncio.to_thread(lambda: faults.add("hang", entity=second))
            await self._until_pulled(pair, "hanging-backlog-queue", second)

    def _disable_backlog_queue(self, path: str) -> None:
        with administration(self.secondary.connection_string()) as admin:
            queue = admin.get_queue(path)
            queue.status = EntityStatus.DISABLED
            admin.update_queue(queue)

    async def _until_pulled(self, pair: Pair, key: str, queue: str) -> None:
        """Send with new senders, each with a choice of its own, until one has met the queue."""
        pair.get_queue_sender(key)
        pair.force_failover(key)
        for number in range(SENDERS_MAX):
            await self._send(pair, key, number=number)
            queues = pair.status().backlog_queues.items()
            pulled = [path for path, one in queues if one.state != "in rotation"]
            if self.outcomes[key].sees != RETURNS or queue in pulled:
                self.pulled[key] = pulled
                return
        raise AssertionError(f"{SENDERS_MAX} senders and none chose {queue}")

    async def _expired_tokens(self) -> None:
        async def expired() -> None:
            async with self._pair("expired", self._with_token(-60)) as pair:
                await self._send(pair, "expired-token")

        async def expires() -> None:
            expires_at = time.monotonic() + TOKEN_LIFE_S
            async with self._pair("expires", self._with_token(TOKEN_LIFE_S)) as pair:
                sender = await self._opened(pair, "expires-meanwhile")
                await asyncio.sleep(expires_at + 0.5 - time.monotonic())
                await self._send(pair, "expires-meanwhile", sender)

        await asyncio.gather(expired(), expires())

    def _with_token(self, life_s: float) -> str:
        text = self.primary.connection_string()
        endpoint = text.partition(";")[0]
        token = sas_token(text, life_s=life_s)
        return f"{endpoint};SharedAccessSignature={token};UseDevelopmentEmulator=true;"

    async def _both(self, pair: Pair, key: str, harm: Awaitable[None]) -> None:
        """A patient and a hasty caller through the same harm."""
        keys = (f"{key}-patient", f"{key}-hasty")
        senders = [await self._opened(pair, one) for one in keys]
        await harm
        await asyncio.gather(*(self._send(pair, *one) for one in zip(keys, senders, strict=True)))

    async def _hang(self, pair: Pair) -> None:
        async def stop() -> None:
            self.primary.process.send_signal(signal.SIGSTOP)

        try:
            await self._both(pair, "stop", stop())
        finally:
            self.primary.process.send_signal(signal.SIGCONT)

    async def _kill_primary(self, pair: Pair) -> None:
        async def kill() -> None:
            self.primary.kill9()

        await self._both(pair, "kill", kill())
        await asyncio.to_thread(self.primary.restart)

    async def _without_secondary(self, pair: Pair) -> None:
        self.secondary.kill9()
        await self._send(pair, "secondary-down")
        async with self._pair("contoso") as unprotected:
            assert not unprotected.status().protected
            await self._send(unprotected, "secondary-never-there")
            self.primary.kill9()
            await asyncio.gather(
                self._send(pair, "both-down"),
                self._send(unprotected, "both-down-unprotected"),
                self._both_down_again(pair),
                self._send(pair, "both-down-without-timeout"),
            )
            # The primary stays down, and the call outlasts the outage of the secondary.
            blip = asyncio.create_task(self._send(pair, "secondary-blip"))
            await until(lambda: self._is_failed_over(pair, "secondary-blip"))
            await asyncio.to_thread(self.secondary.restart)
            await blip

    async def _both_down_again(self, pair: Pair) -> None:
        """Send once more when the entity has failed over and the secondary is known to be lost."""
        await until(lambda: self._is_failed_over(pair, "both-down"))
        await self._send(pair, "both-down-again", pair.get_queue_sender("both-down"))

    @staticmethod
    def _is_failed_over(pair: Pair, key: str) -> bool:
        entity = pair.status().entities.get(key)
        return entity is not None and entity.state == "failed over"

    def _look_where_messages_are(self) -> None:
        with administration(self.secondary.connection_string()) as admin:
            names = [queue.name for queue in admin.list_queues()]
        backlog = [name for name in names if BACKLOG_MARK in name]
        in_backlog = self._peek(self.secondary, *backlog)
        kept = [key for key in self.outcomes if not key.startswith("deleted")]
        on_primary = self._peek(self.primary, *kept)
        for outcome in self.outcomes.values():
            outcome.stored["primary"] = on_primary[outcome.message_id]
            outcome.stored["backlog"] = in_backlog[outcome.message_id]

    def _peek(self, broker: ServedBroker, *queues: str) -> Counter[str]:
        """How often each message id is in these queues."""
        with client(broker.connection_string()) as sdk, ClosedTogether() as opened:
            receivers = [opened.add(sdk.get_queue_receiver(queue)) for queue in queues]
            with ThreadPoolExecutor(PEEKING) as pool:
                found = pool.map(lambda receiver: receiver.peek_messages(250), receivers)
                return Counter(str(message.message_id) for part in found for message in part)


def places(stored: Counter[str]) -> str:
    """Where copies are, as the table writes it."""
    parts = [
        place if stored[place] == 1 else f"{place} x{stored[place]}"
        for place in ("primary", "backlog")
        if stored[place]
    ]
    return " + ".join(parts) or "nowhere"


def run_faults(directory: Path, *options: str, is_short: bool = False) -> FaultWorld:
    """Everything that the table is about, done to two fresh namespaces with these options."""
    with (
        ServedBroker(directory / "primary", "contoso", options=options) as primary,
        ServedBroker(directory / "secondary", "contoso-dr", options=options) as secondary,
    ):
        world = FaultWorld(primary, secondary)
        asyncio.run(world.run_short() if is_short else world.run())
        return world
