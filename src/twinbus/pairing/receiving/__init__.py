"""Receiving: receivers of both sides, guards, and the processor, which runs a handler."""
