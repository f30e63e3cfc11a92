"""What an application can observe: events, metrics, traces and the depth of the backlog."""
