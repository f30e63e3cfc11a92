"""The command `twinbus verify`."""
