"""`twinbus ledger`."""
