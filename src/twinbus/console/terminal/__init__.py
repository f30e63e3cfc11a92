"""Terminal output shared by all commands: formats, tables, the live line, help."""
