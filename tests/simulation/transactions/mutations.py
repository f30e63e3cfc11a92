"""Planted bugs of transactions, in the broker and in the client, that the simulation must find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest.mock import patch

from tests.simulation.machine import NOBODY
from tests.simulation.namespace import SimNamespace
from twinbus.amqp.performatives import Discharge
from twinbus.broker.engine.namespace import BrokerNamespace
from twinbus.broker.engine.transaction import BrokerTransaction
from twinbus.client.transactions import Ending, NamespaceTransaction

GAP_S: Final = 0.02
"""Between two commits: as long as a slow sync."""


@contextmanager
def two_commits() -> Iterator[None]:
    """The discharge is written as two commits: a crash between them leaves the first."""
    real, real_crash = BrokerTransaction.commit, SimNamespace.crash
    gone: list[BrokerNamespace] = []

    def crash(self: SimNamespace, *, dark: bool) -> None:
        gone.append(self.engine)
        real_crash(self, dark=dark)

    def planted(self: BrokerTransaction, now_ms: int) -> None:
        engine, second = self._namespace, BrokerTransaction(self._namespace)
        self._work, second._work = self._work[:1], self._work[1:]
        real(self, now_ms)

        def commit_rest() -> None:
            if engine not in gone:
                real(second, now_ms)

        asyncio.get_running_loop().call_later(GAP_S, commit_rest, context=NOBODY)

    with (
        patch.object(BrokerTransaction, "commit", planted),
        patch.object(SimNamespace, "crash", crash),
    ):
        yield


def unknown_is_committed() -> AbstractContextManager[Any]:
    """A discharge without an answer is taken for a committed one."""

    async def planted(self: NamespaceTransaction) -> None:
        assert self._coordinator is not None
        answer = self._coordinator.ask(Discharge(self._txn_id, False))
        await asyncio.wait({answer}, timeout=self._connection.answer_s)
        self._end(Ending.COMMITTED)

    return patch.object(NamespaceTransaction, "_discharge", planted)


def rollback_that_commits() -> AbstractContextManager[Any]:
    """The end of a block commits also what an exception was to undo."""

    async def planted(self: NamespaceTransaction, why: str = "", *, waits: bool = True) -> None:
        self._failure = None
        await self.commit()

    return patch.object(NamespaceTransaction, "roll_back", planted)


PLANTED: Final[dict[str, tuple[Callable[[], AbstractContextManager[Any]], str]]] = {
    "two commits": (two_commits, "half"),
    "an unknown end taken for a commit": (unknown_is_committed, "claims"),
    "a rollback that commits": (rollback_that_commits, "claims"),
}
