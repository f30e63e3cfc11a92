"""Everything that touches senders and messages of the official SDK."""
