"""The last part of a command's `--help`: exit status, a note, and an example to copy."""

from __future__ import annotations

KEEP_LINES = "\b\n"
"""Tells the help formatter not to rewrap the lines of a paragraph."""


def epilog(example: str, *, exit_status: str = "", note: str = "") -> str:
    """Return the epilog of a command. The lines of `example` are printed as they are."""
    paragraphs = [f"Exit status: {exit_status}"] if exit_status else []
    paragraphs += [note] if note else []
    return "\n\n".join([*paragraphs, f"{KEEP_LINES}Example: {example}"])
