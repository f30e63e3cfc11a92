"""`twinbus twins`."""
