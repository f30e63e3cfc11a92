"""Messages: parsed from senders, stored, and rendered for receivers. Pure."""
