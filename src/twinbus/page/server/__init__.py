"""The HTTP server of the page: access, documents, the live stream, actions."""
