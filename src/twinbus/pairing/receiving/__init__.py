"""Receiving: the processor, which runs a handler for every message."""
