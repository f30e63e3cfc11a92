"""The cost of operations: dated, replaceable price books, and the arithmetic.

This package works without Spark; `twinbus.pipeline.tables.charges` counts the ledger with the same
rules. `cost.bill.bill` makes a bill.
"""

from __future__ import annotations

from twinbus.cost.arithmetic import UNIT_BYTES, CountingRule, units
from twinbus.cost.bill import BillLine, MonthlyBill, MonthUse, ServiceTier, geo_replication_bill
from twinbus.cost.prices import Meter, PriceBook, PriceBookError, Tier, load, standard

__all__ = [
    "UNIT_BYTES",
    "BillLine",
    "CountingRule",
    "Meter",
    "MonthUse",
    "MonthlyBill",
    "PriceBook",
    "PriceBookError",
    "ServiceTier",
    "Tier",
    "geo_replication_bill",
    "load",
    "standard",
    "units",
]
