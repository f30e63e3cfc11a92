"""The tables on disk: commits, updates from the ledger, compaction and removal."""

from typing import Final

REBUILD: Final = "rebuild them (twinbus ledger rebuild LEDGER)"
"""What to do about damaged tables: the ledger's files hold all their records."""

RAW_REMOVED: Final = "raw-removed"
"""A file among the tables: files of the ledger were removed whose records only they hold."""
