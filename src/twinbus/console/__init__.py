"""The command line: `twinbus serve` and what follows it."""
