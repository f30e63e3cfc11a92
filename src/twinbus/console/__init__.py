"""The command line: one folder or file for each group of commands. Exit statuses of all of them."""

from __future__ import annotations

from typing import Final

COULD_NOT: Final = 1
USAGE_ERROR: Final = 2
ATTENTION: Final = 3
"""The command succeeded, and what it shows needs attention."""
STOPPED: Final = 130
"""What a shell reports for a command that Ctrl-C ended."""
