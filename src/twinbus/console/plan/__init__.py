"""`twinbus plan`."""
