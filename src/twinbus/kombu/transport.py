"""A kombu transport over a pair: sends survive the loss of the primary, and so do receives.

A worker reads the primary, and the twin of each queue that has one (docs/twins.md).

Queues and messages have the form of kombu's own transport for Service Bus, so that both can be used
side by side on one namespace.
"""

from __future__ import annotations

import logging
import string
import time
from queue import Empty
from typing import Any, Final

from azure.core.exceptions import AzureError
from kombu.exceptions import OperationalError
from kombu.transport import virtual
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid

from twinbus.errors import TwinbusError, error_text
from twinbus.kombu.process_pair import ProcessPair, broker_settings, pair_name, process_pair
from twinbus.kombu.receiving import FAILURES, Settlement, TaskDelivery, TaskReceivers

log = logging.getLogger("twinbus.kombu")

WAIT_S: Final = 2.0
"""How long a worker waits for a message before it does its other work, such as acknowledgements."""

RECONNECT_S: Final = 2.0
"""Pause after a receive that failed."""

UNUSUAL: Final = str.maketrans(dict.fromkeys(set(string.punctuation) - set("_.-"), "_"))
"""Characters of a queue name that kombu's own transport replaces."""


class Channel(virtual.Channel):  # type: ignore[misc]  # kombu is untyped
    """A channel whose queues are Service Bus queues."""

    do_restore = False
    """The service itself delivers again what is not settled."""

    def __init__(self, connection: Transport, **options: Any) -> None:
        super().__init__(connection, **options)
        self._deliveries: dict[str, TaskDelivery] = {}
        """What was received and is not settled, by delivery tag."""
        self._resume_at: dict[str, float] = {}
        """Queues whose last receive failed, and when to try again."""

    # Queues

    def queue_declare(self, queue: str | None = None, passive: bool = False, **options: Any) -> Any:
        """Create a queue if it is missing. Only a passive declaration counts its messages.

        Counting needs the administration, which is down in an outage of the primary.
        """
        if passive:
            return super().queue_declare(queue, passive=True, **options)
        name = queue or f"amq.gen-{uuid()}"
        self._new_queue(name)
        return virtual.base.queue_declare_ok_t(name, 0, 0)

    def _new_queue(self, queue: str, **_: Any) -> None:
        self._pair.ensure_queue(self._path(queue))

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return self._pair.queue_size(self._path(queue)) is not None

    def _size(self, queue: str) -> int:
        return self._pair.queue_size(self._path(queue)) or 0

    def _delete(self, queue: str, *_: Any, **__: Any) -> None:
        path = self._path(queue)
        self._pair.administer(lambda admin: admin.delete_queue(path))
        self._pair.forget_queue(path)

    def _purge(self, queue: str) -> int:
        path, count = self._path(queue), 0
        while (delivery := self._receivers.receive(path, 1.0)) is not None:
            self._receivers.settle(delivery, "complete")
            count += 1
        return count

    # Messages

    def _put(self, queue: str, message: Any, *, timeout: float | None = None, **_: Any) -> None:
        try:
            self._pair.send(self._path(queue), dumps(message), timeout)
        except (TwinbusError, AzureError, OSError) as error:
            # The error for which users of Celery look when a broker is down. kombu does not retry
            # it: the pair has used up the time of the call.
            raise OperationalError(f"{queue}: {error_text(error)}") from error

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        path = self._path(queue)
        if time.monotonic() < self._resume_at.get(path, 0.0):
            raise Empty
        wait_s = timeout or WAIT_S / max(1, len(self._active_queues))
        try:
            delivery = self._receivers.receive(path, wait_s)
        except FAILURES as error:
            self._receive_failed(path, error)
            raise Empty from None
        if self._resume_at.pop(path, None) is not None:
            log.warning("%s: tasks are received again", path)
        if delivery is None:
            raise Empty
        try:
            payload = loads(delivery.body)
            # Its sender's tag comes again if the message is delivered again.
            tag = payload["properties"]["delivery_tag"] = uuid()
        except (ValueError, TypeError, LookupError) as error:
            log.error("%s: dead-lettered what is no task: %s", path, error_text(error))  # noqa: TRY400
            self._settle(delivery, "dead_letter")
            raise Empty from None
        self._deliveries[tag] = delivery
        return payload

    def _receive_failed(self, path: str, error: BaseException) -> None:
        if path not in self._resume_at:
            log.warning("%s: tasks cannot be received now: %s", path, error_text(error))
        # A queue that was not there when it was declared, or that was deleted.
        self._pair.forget_queue(path)
        self._pair.ensure_queue(path)
        self._resume_at[path] = time.monotonic() + RECONNECT_S

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        message = super().basic_get(queue, no_ack=False, **options)
        if message is not None and no_ack:
            self.basic_ack(message.delivery_tag)
        return message

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any
    ) -> None:
        """Consume from a queue; without acknowledgements a message is settled as it comes."""

        def settled(message: Any) -> Any:
            self.basic_ack(message.delivery_tag)
            return callback(message)

        chosen = settled if no_ack else callback
        super().basic_consume(queue, False, chosen, consumer_tag, **options)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        self._settle(self._deliveries.pop(delivery_tag, None), "complete")
        super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        how: Settlement = "abandon" if requeue else "dead_letter"
        self._settle(self._deliveries.pop(delivery_tag, None), how)
        super().basic_reject(delivery_tag, requeue=False)

    def _settle(self, delivery: TaskDelivery | None, how: Settlement) -> None:
        """Settle a message; if its side is down, it will be delivered again."""
        if delivery is not None:
            self._receivers.settle(delivery, how)

    def _restore(self, message: Any) -> None:
        """Nothing: `close` of the connection gives back what is not settled."""

    def _path(self, queue: str) -> str:
        prefix: str = self.connection.client.transport_options.get("queue_name_prefix", "")
        return f"{prefix}{queue}".translate(UNUSUAL)

    @property
    def _pair(self) -> ProcessPair:
        pair: ProcessPair = self.connection.pair
        return pair

    @property
    def _receivers(self) -> TaskReceivers:
        receivers: TaskReceivers = self.connection.receivers
        return receivers


class Transport(virtual.Transport):  # type: ignore[misc]  # kombu is untyped
    """`twinbus://NAME`; the name is that of a pair (`broker_settings`)."""

    Channel = Channel

    can_parse_url = True
    default_port = None
    driver_type = "azureservicebus"
    driver_name = "twinbus"
    polling_interval = 0.1
    """A receive waits for messages itself; this only follows one that found none."""

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.settings = broker_settings(client.hostname or "", client.transport_options)
        self._opened_receivers: TaskReceivers | None = None

    @property
    def pair(self) -> ProcessPair:
        """The pair of this process, also after a fork."""
        return process_pair(self.settings)

    @property
    def receivers(self) -> TaskReceivers:
        if self._opened_receivers is None:
            self._opened_receivers = self.pair.receivers()
        return self._opened_receivers

    def close_connection(self, connection: Any) -> None:
        """Close channels and receivers; the pair of the process stays."""
        try:
            super().close_connection(connection)
        finally:
            self._collect(connection)

    def _collect(self, connection: Any) -> None:
        """Forget the connection without using it: in a forked process it is the parent's."""
        receivers, self._opened_receivers = self._opened_receivers, None
        if receivers is not None:
            # In the parent it is closed, in a forked process this does nothing.
            receivers.close()

    @classmethod
    def as_uri(cls, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The URL for people; it never has a secret."""
        return f"twinbus://{pair_name(uri)}"
