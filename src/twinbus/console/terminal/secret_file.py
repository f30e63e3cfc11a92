"""Secrets that a command reads from a file, because other users can see a command line."""

from __future__ import annotations

from pathlib import Path

from twinbus.console.terminal.output import WrongUse


def secret_in(file: Path | None) -> str | None:
    """Return the one line of a file with one secret; None without a file."""
    if file is None:
        return None
    lines = secret_lines(file)
    if len(lines) != 1:
        raise WrongUse(f"{file} has {len(lines)} lines; give the secret on one line")
    return lines[0]


def secret_lines(file: Path | None) -> list[str]:
    """Return the lines of a file of secrets, without empty ones and comments."""
    if file is None:
        return []
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(f"{file} cannot be read: {error}") from error
    return [line for line in lines if line and not line.startswith("#")]
