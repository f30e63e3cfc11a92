"""`twinbus cost` and `twinbus prices`."""
