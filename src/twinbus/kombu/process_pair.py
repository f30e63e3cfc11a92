"""The pair of a process: all kombu connections of one process and one broker URL share it.

    twinbus://eu   the pair `eu` of the settings file
    twinbus://     `primary` and `secondary` of the transport options, else of the environment

No key needs to stand in the URL: a side may name its source (sb://HOST?credential=default).

A worker forks, and neither threads nor connections survive a fork. So a pair starts with the first
send of a process, and a forked process begins with none.
"""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusMessage

from twinbus.blocking.loop_thread import LoopThread
from twinbus.blocking.pair import Pair, pair_namespaces
from twinbus.errors import SettingsError, error_text
from twinbus.kombu.receiving import TaskReceivers
from twinbus.namespace.access import NamespaceAccess
from twinbus.namespace.administration_client import administration_client
from twinbus.namespace.namespace import Namespace, both_sides
from twinbus.options import SendAvailabilityOptions
from twinbus.settings.files import VARIABLE, no_file_text, read_settings, settings_place
from twinbus.settings.keys import EMBEDDED

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

    from twinbus.blocking.sender import PairedSender

SIDES: Final = ("primary", "secondary")
ATTEMPTS: Final = 3
"""A call that lasts a failover interval and this many attempts sees the failover and the divert."""

_ROUTE: Final = ("credential", "transport", "proxy", "endpoint")
_OPTIONS: Final = tuple(each.name for each in dataclasses.fields(SendAvailabilityOptions))


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Two namespaces, and how to send to them; it holds no open resource."""

    primary: NamespaceAccess
    secondary: NamespaceAccess
    options: SendAvailabilityOptions
    send_timeout_s: float
    create_queues: bool

    @property
    def key(self) -> str:
        """A text that is equal for equal settings: not every option can be hashed."""
        access = self.primary, self.secondary
        return repr((*map(dataclasses.astuple, access), self.options, self.create_queues))


def broker_settings(url: str, transport_options: Mapping[str, Any]) -> BrokerSettings:
    """Return the settings of a URL; SettingsError or ValueError, in one line, if it means none."""
    name = pair_name(url)
    given = {key: transport_options[key] for key in _OPTIONS if key in transport_options}
    sides, defaults = _named_pair(name) if name else (_given_sides(transport_options), {})
    options = SendAvailabilityOptions(**{**defaults, **given})
    timeout_s = options.failover_interval_s + ATTEMPTS * options.attempt_timeout_s
    return BrokerSettings(
        *sides,
        options=options,
        send_timeout_s=float(transport_options.get("send_timeout", timeout_s)),
        create_queues=bool(transport_options.get("create_queues", True)),
    )


def pair_name(url: str) -> str:
    return url.rpartition("://")[2].strip("/")


def _named_pair(name: str) -> tuple[tuple[NamespaceAccess, NamespaceAccess], dict[str, Any]]:
    place = settings_place(None, os.environ)
    file = read_settings(place)
    if file is None or name not in file.pairs:
        why = no_file_text(place) if file is None else f"it is not in {file.path}"
        raise SettingsError(
            f"the broker URL names the pair {name!r:.60}: {why}; {VARIABLE} can name another file"
        )
    pair = file.pairs[name]
    values = {key: pair.value(key) for key in pair.entries}
    missing = [side for side in SIDES if side not in values]
    if missing:
        raise SettingsError(f"{file.path}: pair {name} has no {' and no '.join(missing)}")
    if values["secondary"].startswith(EMBEDDED):
        raise SettingsError(
            f"{file.path}: the secondary of pair {name} is inside a gateway ({EMBEDDED}DIR),"
            " which a broker URL cannot reach; name another pair"
        )
    route = {key: values[key] for key in _ROUTE if key in values}
    primary = NamespaceAccess.parse(values["primary"], name=values.get("label"), **route)
    options = {
        "backlog_queue_count": values.get("queues"),
        "ledger": values.get("ledger"),
        "twins": values.get("twins"),
        "twins_with_sessions": values.get("twins-with-sessions"),
        "board": values.get("board"),
        "quorum": values.get("quorum"),
    }
    return (
        (primary, NamespaceAccess.parse(values["secondary"], **route)),
        {key: value for key, value in options.items() if value is not None},
    )


def _given_sides(options: Mapping[str, Any]) -> tuple[NamespaceAccess, NamespaceAccess]:
    texts = [options.get(side) or os.environ.get(f"TWINBUS_{side.upper()}") for side in SIDES]
    if not all(isinstance(text, str) and text for text in texts):
        raise SettingsError(
            "the broker URL names no pair: give twinbus://NAME, or primary and secondary in"
            " broker_transport_options, or TWINBUS_PRIMARY and TWINBUS_SECONDARY"
        )
    primary, secondary = (NamespaceAccess.parse(str(text)) for text in texts)
    return primary, secondary


T = TypeVar("T")

log = logging.getLogger("twinbus.kombu")

PAUSE_FACTOR: Final = 6.0
PAUSE_MIN_S: Final = 1.0
"""After a try to create a queue that the administration did not answer, the pause before the next
is this many times as long as the try. So an outage costs senders at most a seventh of their time.
"""

LOCK: Final = "PT5M"
"""The longest lock that the service grants. A prefetched task waits that long without a renewal."""

FORBIDDEN: Final = (401, 403)


class ProcessPair:
    """Sends by a pair, and creates queues as far as the primary answers."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._pair: Pair | None = None
        self._senders: dict[str, PairedSender] = {}
        self._loop_thread = LoopThread("twinbus-kombu")
        self._known: set[str] = set()
        """Queues that exist, or that only an administrator may create."""
        self._ask_at = 0.0

    def send(self, queue: str, body: str, timeout_s: float | None = None) -> None:
        """Return when a task is stored, on the primary or in the backlog."""
        message = ServiceBusMessage(body)
        self._sender(queue).send_messages(
            message, timeout=timeout_s or self.settings.send_timeout_s
        )

    def receivers(self) -> TaskReceivers:
        settings = self.settings
        sides = settings.primary, settings.secondary
        return TaskReceivers(*sides, settings.options, self._loop_thread)

    def ensure_queue(self, queue: str) -> None:
        """Create a queue in the primary if it is missing; in an outage leave that for later."""
        began = time.monotonic()
        if queue in self._known or not self.settings.create_queues or began < self._ask_at:
            return
        try:
            with suppress(ResourceExistsError):
                self.administer(lambda admin: admin.create_queue(queue, lock_duration=LOCK))
        except (AzureError, OSError) as error:
            status = getattr(error, "status_code", None)
            if not isinstance(error, ClientAuthenticationError) and status not in FORBIDDEN:
                now = time.monotonic()
                self._ask_at = now + max(PAUSE_MIN_S, PAUSE_FACTOR * (now - began))
                log.info("%s: it cannot be created now (%s)", queue, error_text(error))
                return
            log.info("%s: no right to create it (%s)", queue, error_text(error))
        self._known.add(queue)

    def forget_queue(self, queue: str) -> None:
        """Create the queue again when it is declared the next time."""
        self._known.discard(queue)

    def queue_size(self, queue: str) -> int | None:
        """Return how many messages a queue has; None: it does not exist."""
        try:
            found = self.administer(lambda admin: admin.get_queue_runtime_properties(queue))
        except ResourceNotFoundError:
            return None
        return int(found.active_message_count or 0)

    def administer(self, work: Callable[[ServiceBusAdministrationClient], Awaitable[T]]) -> T:
        """Return the result of one call to the primary's administration, within an attempt."""

        async def call() -> T:
            async with asyncio.timeout(self.settings.options.attempt_timeout_s):
                async with administration_client(Namespace.of(self.settings.primary)) as admin:
                    return await work(admin)

        return self._loop_thread.run(call)

    def close(self) -> None:
        with self._lock:
            pair, self._pair = self._pair, None
            self._senders.clear()
        if pair is not None:
            pair.close()
        self._loop_thread.stop()

    def _sender(self, queue: str) -> PairedSender:
        sender = self._senders.get(queue)
        if sender is not None:
            return sender
        with self._lock:
            if self._pair is None:
                sides = both_sides(self.settings.primary, self.settings.secondary)
                pair = pair_namespaces(*sides, self.settings.options)
                pair.start()
                self._pair = pair
            return self._senders.setdefault(queue, self._pair.get_queue_sender(queue))


class _Pairs:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_key: dict[str, ProcessPair] = {}


_pairs = _Pairs()
_of_parents: list[Any] = []
"""What a forked process inherited. Kept, because freeing it could write to connections that belong
to the parent."""


def process_pair(settings: BrokerSettings) -> ProcessPair:
    with _pairs.lock:
        return _pairs.by_key.setdefault(settings.key, ProcessPair(settings))


def close_process_pairs() -> None:
    """Close all pairs of this process; Python calls it at its end."""
    with _pairs.lock:
        pairs, _pairs.by_key = _pairs.by_key, {}
    for pair in pairs.values():
        pair.close()


def _begin_anew() -> None:
    """In a forked process: leave the parent's pairs alone; their locks may be held for ever."""
    global _pairs  # noqa: PLW0603
    _of_parents.append(_pairs)
    _pairs = _Pairs()


atexit.register(close_process_pairs)
os.register_at_fork(after_in_child=_begin_anew)
