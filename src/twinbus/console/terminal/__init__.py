"""What all commands share on a terminal: output formats, tables, the live line."""
