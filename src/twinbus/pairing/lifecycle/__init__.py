"""From pairing to closing: backlog queues discovered, sides closed and faulted."""
