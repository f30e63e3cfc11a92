"""A backlog for good and bad destinations, mixed, between two broker processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    EntityStatus,
    ServiceBusAdministrationClient,
)

from tests.end_to_end.raw_client import RawClient, Refused
from tests.end_to_end.syphon_world import BODY, send_all, stored
from tests.official_sdk import Faults, administration, client
from tests.processes import ServedBroker

RULE, KEY = "mover", "bW92ZXI="
"""The syphon's: known to each entity by itself, so that one can withhold a right."""

LOCK = timedelta(seconds=30)
GOOD = ["orders", "invoices", "events"]
HELD = ["disabled", "full", "throttled"]
WITHHELD = ["unheard", "unknown"]
"""They give the syphon's rule no right to send: `unheard` grants Listen only, `unknown` nothing."""

MISSING, SMALL, HUNG = "missing", "small", "hung"
BIG_BODY = b"x" * 200_000
FILLER = "filler"
FULL_MB = 1


class MixedBacklog:
    """Both brokers; fresh backlog queues for each `fill`."""

    def __init__(self, directory: Path) -> None:
        self.primary = ServedBroker(directory / "primary", "contoso", options=("--quiet",))
        self.secondary = ServedBroker(directory / "secondary", "second", options=("--quiet",))
        self._numbers = iter(range(1_000))
        self._fillers = 0

    def __enter__(self) -> MixedBacklog:
        self.primary.start()
        self.secondary.start()
        with administration(self.primary.connection_string()) as admin:
            for name in (*GOOD, *HELD, *WITHHELD, SMALL, HUNG):
                rights = {"unheard": [AccessRights.LISTEN], "unknown": []}
                self._create(admin, name, rights.get(name, [AccessRights.SEND]))
        return self

    def __exit__(self, *_: object) -> None:
        self.primary.kill9()
        self.secondary.kill9()

    def sides(self, rule: str | None = None) -> tuple[str, str]:
        """The connection strings of the primary, as everything or as `RULE`, and the secondary."""
        first = self.primary.connection_string(rule=rule, key=rule and KEY)
        return first, self.secondary.connection_string()

    @staticmethod
    def _create(
        admin: ServiceBusAdministrationClient, name: str, rights: list[AccessRights]
    ) -> None:
        settings: dict[str, Any] = {"max_size_in_megabytes": FULL_MB} if name == "full" else {}
        rules = [_rule(rights)] if rights else []
        if name == "events":
            admin.create_topic(name, authorization_rules=rules)
            admin.create_subscription(name, "all")
        else:
            admin.create_queue(name, authorization_rules=rules, **settings)

    # What is wrong, and how it is mended

    def break_all(self) -> None:
        """Make every bad destination what it is called."""
        with administration(self.primary.connection_string()) as admin:
            self._set_status(admin, EntityStatus.SEND_DISABLED)
        asyncio.run(self._fill_up())
        faults = Faults(self.primary.connection_string())
        faults.add("throttle", entity="throttled", description="more than it may take")
        faults.add(
            "refuse_send",
            entity=SMALL,
            count=1,
            condition="amqp:link:message-size-exceeded",
            description="the message has 2000 bytes, the entity takes 1024",
        )

    def hang(self) -> None:
        """Have one destination answer nothing: no attach, and no message."""
        Faults(self.primary.connection_string()).add("hang", entity=HUNG)

    def mend(self) -> None:
        """Have every held destination take messages again; the missing one stays missing."""
        Faults(self.primary.connection_string()).clear()
        self._empty_full()
        with administration(self.primary.connection_string()) as admin:
            self._set_status(admin, EntityStatus.ACTIVE)

    def allow(self) -> None:
        """Give the syphon's rule the right to send where it was withheld."""
        with administration(self.primary.connection_string()) as admin:
            for name in WITHHELD:
                queue = admin.get_queue(name)
                queue.authorization_rules = [_rule([AccessRights.SEND])]
                admin.update_queue(queue)

    @staticmethod
    def _set_status(admin: ServiceBusAdministrationClient, status: EntityStatus) -> None:
        queue = admin.get_queue("disabled")
        queue.status = status
        admin.update_queue(queue)

    async def _fill_up(self) -> None:
        connection = await RawClient.open(self.primary.connection_string())
        sender = await connection.sender("full")
        for body in (BIG_BODY, BODY, b""):
            with contextlib.suppress(Refused):
                while True:
                    await sender.room()
                    await sender.send(stored("full", FILLER, body=body))
                    self._fillers += 1
        await connection.close()

    def _empty_full(self) -> None:
        """Receive the fillers, and not what a syphon puts there as soon as there is room."""
        with (
            client(self.primary.connection_string()) as sdk,
            sdk.get_queue_receiver("full") as receiver,
        ):
            while self._fillers:
                for message in receiver.receive_messages(min(self._fillers, 10), max_wait_time=5):
                    assert message.message_id == FILLER, "they are the oldest"
                    receiver.complete_message(message)
                    self._fillers -= 1

    # The backlog

    def fill(self, counts: dict[str, int]) -> str:
        """A backlog queue with so many messages for each destination, well mixed; its name."""
        queue = f"contoso/x-servicebus-transfer/{next(self._numbers)}"
        with administration(self.secondary.connection_string()) as admin:
            admin.create_queue(queue, max_delivery_count=2**31 - 1, lock_duration=LOCK)
        self.add(queue, mixed(counts))
        return queue

    def add(self, queue: str, paths: Sequence[str]) -> None:
        """Store one message for each of these destinations, in that order."""

        async def add() -> None:
            connection = await RawClient.open(self.secondary.connection_string())
            await send_all(connection, queue, self._messages(queue, paths))
            await connection.close()

        asyncio.run(add())

    @staticmethod
    def _messages(queue: str, paths: Sequence[str]) -> Iterator[bytes]:
        for number, path in enumerate(paths):
            yield stored(path, f"{queue[-1]}-{path}-{number}")

    def count(self, name: str) -> int:
        """Messages that an entity of the primary holds."""
        with administration(self.primary.connection_string()) as admin:
            if name == "events":
                found = admin.get_subscription_runtime_properties(name, "all")
                return found.active_message_count or 0
            return admin.get_queue_runtime_properties(name).active_message_count or 0

    def waiting(self, queue: str) -> tuple[int, int]:
        """Messages that wait in a backlog queue, in whatever state, and its dead letters."""
        with administration(self.secondary.connection_string()) as admin:
            found = admin.get_queue_runtime_properties(queue)
        dead = found.dead_letter_message_count or 0
        return (found.total_message_count or 0) - dead, dead

    def dead_letters(self, queue: str) -> list[tuple[str, str, str]]:
        """Destination, reason and description of each."""
        with (
            client(self.secondary.connection_string()) as sdk,
            sdk.get_queue_receiver(queue, sub_queue="deadletter") as receiver,
        ):
            return [
                (
                    bytes_of((m.application_properties or {})[b"x-ms-path"]).decode(),
                    m.dead_letter_reason or "",
                    m.dead_letter_error_description or "",
                )
                for m in receiver.peek_messages(250)
            ]

    def defer_all(self, queue: str, count: int) -> list[int]:
        """Defer the `count` messages that a backlog queue holds; their numbers."""
        numbers: list[int] = []
        with client(self.secondary.connection_string()) as sdk, sdk.get_queue_receiver(queue) as r:
            while len(numbers) < count:
                for message in r.receive_messages(count, max_wait_time=5):
                    r.defer_message(message)
                    numbers.append(message.sequence_number or 0)
        return numbers

    def delivered_once(self, queue: str, count: int) -> int:
        """How many of the first `count` messages of a backlog queue were ever delivered."""
        with client(self.secondary.connection_string()) as sdk, sdk.get_queue_receiver(queue) as r:
            peeked = r.peek_messages(count)
        return sum(1 for message in peeked if message.delivery_count)


def bytes_of(value: object) -> bytes:
    """A property as the SDK gives it."""
    assert isinstance(value, bytes)
    return value


def mixed(counts: dict[str, int]) -> list[str]:
    """Destinations, each as often as it says, spread over the whole length."""
    places = [
        ((number + 0.5) / count, path) for path, count in counts.items() for number in range(count)
    ]
    return [path for _, path in sorted(places)]


def _rule(rights: list[AccessRights]) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=list(rights),
        key_name=RULE,
        primary_key=KEY,
        secondary_key=KEY,
    )
