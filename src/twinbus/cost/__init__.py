"""The cost of operations: dated, replaceable price books, and the arithmetic (docs/costs.md).

This package works without Spark; `twinbus.pipeline.tables.charges` counts the ledger with the same
rules. `cost.bill.bill` makes a bill.
"""
