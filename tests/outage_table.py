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

    is_judged: bool = False
    """Whether it is known what was lost; a run that was ended in the middle does not say."""

    def __str__(self) -> str:
        says = f"{self.rounds} rounds, longest gap {self.longest_gap_s:.1f} s"
        if not self.is_judged:
            return f"{says}, not known what was lost"
        reasons = "".join(
            f", {count} times: {reason or 'no reason'}"
            for reason, count in Counter(self.twice.values()).items()
        )
        return f"{says}, {len(self.lost)} lost, {len(self.twice)} handed out twice{reasons}"


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

    def add_gap(self, place: str, gap_s: float) -> None:
        """Add one round of a place."""
        row = self.rows.setdefault(place, Row())
        row.rounds += 1
        row.longest_gap_s = max(row.longest_gap_s, gap_s)
        sys.stderr.write(f"{self._fault} {row.rounds}: {place}: gap {gap_s:.1f} s\n")

    def add_messages(self, place: str, lost: set[str], twice: Mapping[str, str]) -> None:
        """Add what became of messages, of one round or of several."""
        row = self.rows.setdefault(place, Row())
        row.is_judged = True
        row.lost += sorted(lost)
        row.twice.update(twice)
        says = f"{len(lost)} lost, twice {dict(Counter(twice.values()))}"
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
