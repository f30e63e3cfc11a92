"""`twinbus faults`."""
