"""What a namespace is: its connection string, host, label, tokens and credentials."""
