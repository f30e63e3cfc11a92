"""Moves the messages of one backlog queue to the primary, as its pump decides."""
