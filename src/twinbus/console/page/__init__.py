"""`twinbus page`."""
