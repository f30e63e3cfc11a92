"""What became of the messages over many outages: a row for each place of a consumer."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Row:
    """The sum of all rounds at one place."""

    rounds: int = 0
    longest_gap_s: float = 0.0
    lost: list[str] = field(default_factory=list)
    twice: dict[str, str] = field(default_factory=dict)
    """Ids that were handed out more than once, and the reason of each; empty: there is none."""

    def __str__(self) -> str:
        reasons = "".join(
            f", {count} times: {reason or 'no reason'}"
            for reason, count in Counter(self.twice.values()).items()
        )
        return (
            f"{self.rounds} rounds, longest gap {self.longest_gap_s:.1f} s, "
            f"{len(self.lost)} lost, {len(self.twice)} handed out twice{reasons}"
        )


class OutageTable:
    """The rows of one kind of outage; every round goes to stderr, for the log of a soak run."""

    def __init__(self, fault: str) -> None:
        self.rows: dict[str, Row] = {}
        self._fault = fault

    @classmethod
    @contextmanager
    def printed(cls, fault: str) -> Iterator[OutageTable]:
        """A table that is printed at the end, also of a run that a failure ended."""
        table = cls(fault)
        try:
            yield table
        finally:
            for place, row in table.rows.items():
                sys.stderr.write(f"\nSUM {fault} | {place} | {row}")
            sys.stderr.write("\n")

    def add(
        self, place: str, gap_s: float, lost: set[str], twice: Mapping[str, str], rounds: int = 1
    ) -> None:
        row = self.rows.setdefault(place, Row())
        row.rounds += rounds
        row.longest_gap_s = max(row.longest_gap_s, gap_s)
        row.lost += sorted(lost)
        row.twice.update(twice)
        says = f"gap {gap_s:.1f} s, {len(lost)} lost, twice {dict(Counter(twice.values()))}"
        sys.stderr.write(f"{self._fault} {row.rounds}: {place}: {says}\n")

    @property
    def lost(self) -> list[str]:
        return [name for row in self.rows.values() for name in row.lost]

    def gaps_over(self, limit_s: float) -> dict[str, float]:
        gaps = {place: row.longest_gap_s for place, row in self.rows.items()}
        return {place: gap_s for place, gap_s in gaps.items() if gap_s > limit_s}

    @property
    def reasons(self) -> set[str]:
        """Why messages were handed out twice."""
        return {reason for row in self.rows.values() for reason in row.twice.values()}
