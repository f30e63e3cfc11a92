"""The ledger as tables, and the syphon as a job, on Spark (SPEC 8).

`tables` are pure functions over DataFrames, `store` keeps them on disk, `reports` makes plain data
of them, `drain` is the syphon, `spark` starts a quiet session. `submit` and `planner` are jobs.

Nothing is imported here: only what uses Spark loads it.
"""
