"""`twinbus check --proof`: conservation from the lines of a ledger, without Spark."""
