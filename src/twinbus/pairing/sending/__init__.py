"""A send call from the application to the primary or to a backlog queue."""
