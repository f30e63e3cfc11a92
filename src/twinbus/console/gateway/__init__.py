"""`twinbus gateway`."""
