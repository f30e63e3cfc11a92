"""The ledger as tables, on Spark (SPEC 8).

`charges` and `conservation` are pure functions over DataFrames, `schemas` what they read and give;
`jobs` alone reads, writes and starts work; `report` is the answer without Spark in it. `session`
starts a quiet local Spark, on the Java that `java` finds or brings.

Nothing is imported here: only what uses Spark loads it.
"""
