"""The pure part of pairing: it decides, takes `now`, and does no I/O."""
