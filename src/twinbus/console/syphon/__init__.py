"""`twinbus syphon`."""
