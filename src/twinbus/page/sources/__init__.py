"""Where the page learns what it shows: control sockets, the ledger, other pages."""
