"""The administration API: Atom XML over HTTP."""
