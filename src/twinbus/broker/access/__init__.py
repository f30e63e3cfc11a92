"""Who may connect: limits of connections, origins of web pages, tokens from a file."""
