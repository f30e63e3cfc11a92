"""`twinbus backlog`."""
