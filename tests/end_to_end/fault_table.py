"""What callers see, fault by fault, and backlog queues that are missing or wrong, as data.

The tests check the rows of failures.toml, docs/failures.md prints them.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

RETURNS = "returns"

HASTY = "hasty"
"""Waits less than the failover interval; the patient wait longer."""

UNLIMITED = "without a timeout"


@dataclass(frozen=True)
class Row:
    """One fault, one caller, and the result."""

    key: str
    """Also the name of the entity and the id of the message in the test."""
    fault: str
    caller: str
    sees_all: str
    state: str
    """Of the entity, right after the call."""
    ends: str
    note: str

    @property
    def sees(self) -> str:
        """RETURNS, or the name of the exception."""
        return self.sees_all.partition(", ")[0]

    @property
    def carries(self) -> tuple[str, ...]:
        """What else is on the error, beside `message_ids`, which every error has."""
        return tuple(self.sees_all.split(", ")[1:])

    @property
    def stored(self) -> tuple[str, ...]:
        """Where the copies of the message are when everything works again; every right end."""
        return tuple(self.ends.split(" or "))


@dataclass(frozen=True, kw_only=True)
class BacklogRow:
    """One thing that is wrong with a backlog queue, and the result."""

    fault: str
    at_first: str
    then: str
    shown_by: list[str]
    """Tests that do it, by file and name; a test of the page checks that they exist."""


_TABLES = tomllib.loads(Path(__file__).with_name("failures.toml").read_text())
ROWS = [Row(key, *cells) for key, cells in _TABLES["faults"].items()]
BACKLOG_ROWS = [BacklogRow(**row) for row in _TABLES["backlog"]]


def markdown() -> str:
    """The table of faults as docs/failures.md has it."""
    lines = [
        "| fault | the caller | sees | entity | the message is | |",
        "|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        sees = row.sees if row.sees == RETURNS else f"`{row.sees}`"
        sees += "".join(f", `{part}`" for part in row.carries)
        cells = (row.fault, row.caller, sees, row.state, row.ends, row.note)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def backlog_markdown() -> str:
    """The table of backlog queues as the page has it."""
    lines = ["| fault | at first | then |", "|---|---|---|"]
    lines += [f"| {row.fault} | {row.at_first} | {row.then} |" for row in BACKLOG_ROWS]
    return "\n".join(lines) + "\n"
