"""What operations cost: a dated price book that anyone can replace, and the arithmetic.

Without Spark, for quick answers; `twinbus.pipeline.charges` counts the ledger with the same rules.
"""

from __future__ import annotations

from twinbus.cost.arithmetic import UNIT_BYTES, CountingRule, units
from twinbus.cost.prices import Meter, PriceBook, PriceBookError, Tier, load, standard

__all__ = [
    "UNIT_BYTES",
    "CountingRule",
    "Meter",
    "PriceBook",
    "PriceBookError",
    "Tier",
    "load",
    "standard",
    "units",
]
