"""`twinbus drill`."""
