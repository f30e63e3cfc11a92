"""What a pair shows: events, metrics, traces and the depth of the backlog."""
