"""What `twinbus serve` does beside serving: check a data directory, read the emulator's file."""
