"""The leases of backlog queues, so that each queue has one pump at a time.

leases = Leases(secondary, queues, on_change); leases.start()
...; leases.holds(queue) -> True while this process may pump it
await leases.close()
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from twinbus.client.connection import MACHINE, Environment
from twinbus.client.lock_validity import LockAddress, lease_queue
from twinbus.client.session_locks import LockTerms, SessionLocks
from twinbus.ledger.requests import RequestLedger
from twinbus.namespace.access import Endpoint
from twinbus.status.document import LEASED

TERMS = LockTerms(taken=LEASED, log=logging.getLogger("twinbus.syphon"))


class Leases(SessionLocks):
    """The leases of backlog queues that this process holds or waits for."""

    def __init__(
        self,
        endpoint: Endpoint,
        queues: Iterable[str],
        on_change: Callable[[str, bool], None],
        ledger: RequestLedger | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        """`on_change` is called with a backlog queue and whether it may be pumped now."""
        addresses = {queue: lease_address(queue) for queue in queues}
        super().__init__(endpoint, addresses, on_change, TERMS, ledger, environment)


def lease_address(backlog_queue: str) -> LockAddress:
    """Return session 3 of `contoso/x-twinbus-lease` for `contoso/x-servicebus-transfer/3`."""
    label, _, index = [*backlog_queue.rsplit("/", 2), "", ""][:3]
    return LockAddress(lease_queue(label), index or "0")
