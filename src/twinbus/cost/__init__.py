"""What operations cost: a dated price book that anyone can replace, and the arithmetic.

Without Spark, for quick answers; `twinbus.pipeline.tables.charges` counts the ledger with the
same rules.
The function that makes a bill is `cost.bill.bill`.
"""

from __future__ import annotations

from twinbus.cost.arithmetic import UNIT_BYTES, CountingRule, units
from twinbus.cost.bill import (
    BillLine,
    MonthlyBill,
    MonthUse,
    ServiceTier,
    geo_replication_bill,
)
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
