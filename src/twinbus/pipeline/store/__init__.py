"""The tables on disk: commits, updates from the ledger, compaction and removal."""
