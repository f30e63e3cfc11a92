"""Sends by other ways than a shared link: on the thread of the caller, and by request."""
