"""`twinbus report`."""
