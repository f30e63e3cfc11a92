"""The pure part of the syphon: it decides, takes `now`, and does no I/O."""
