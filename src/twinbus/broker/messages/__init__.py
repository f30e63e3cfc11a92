"""Messages as they come, lie in the store and go out: pure."""
