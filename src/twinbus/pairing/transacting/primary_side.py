"""The primary of a pair, as `pair.primary`: a side that also has transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twinbus.pairing.core.sides import Side
from twinbus.pairing.lifecycle.closing import PairSide, SideKeeper

if TYPE_CHECKING:
    from twinbus.pairing.transacting.transaction import Transaction
    from twinbus.pairing.transacting.transactions import Transactions


class PrimarySide(PairSide):
    """The primary of a pair, to be closed or faulted by hand, and for transactions."""

    def __init__(
        self, keeper: SideKeeper, endpoint: str, connect: Callable[[], Transactions]
    ) -> None:
        """`connect` makes a connection for transactions."""
        super().__init__(keeper, Side.PRIMARY, endpoint)
        self._connect = connect

    def transaction(self) -> Transaction:
        """A transaction of sends to the primary, for one `async with` block.

        It has a connection of its own, which is closed with the block. `transactions` keeps one,
        for many transactions and for those that settle messages.
        """
        # Imported late: most pairs have no transactions.
        from twinbus.pairing.transacting.transaction import Transaction

        return Transaction(self._connect(), closes_owner=True)

    def transactions(self) -> Transactions:
        """A connection to the primary for transactions, with receivers of its own."""
        return self._connect()
