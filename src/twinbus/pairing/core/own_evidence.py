"""What one process has seen itself of an entity that fails: it decides what others are told. Pure.

An entity that failed over early, because of what others say, is no evidence for others: evidence
would breed evidence. It becomes evidence when this process knows by itself what the failover
interval would have shown: a whole interval without a success, and a ping that was not answered.
"""

from __future__ import annotations


class OwnEvidence:
    """The failures of one entity since its first counting one; a recovery ends it."""

    __slots__ = ("_last_ping_counts", "failover_interval_s", "first_failure_at", "kinds", "others")

    def __init__(self, first_failure_at: float, failover_interval_s: float) -> None:
        self.first_failure_at = first_failure_at
        self.failover_interval_s = failover_interval_s
        self.kinds: dict[str, int] = {}
        """How many attempts failed in each way until the failover."""
        self.others = ""
        """What others said when the entity failed over early; empty: by its own interval."""
        self._last_ping_counts: bool | None = None

    def __repr__(self) -> str:
        return f"OwnEvidence({self}, others={self.others!r})"

    def __str__(self) -> str:
        counts = (f"{count} {kind}{'s' * (count != 1)}" for kind, count in self.kinds.items())
        return "own " + (", ".join(counts) or "failure")

    def failed(self, kind: str) -> None:
        """An attempt failed; `kind` is one of a few fixed texts."""
        if kind:
            self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def ping_failed(self, *, counts: bool) -> None:
        """A ping was not answered, or was answered with an error that does not count."""
        self._last_ping_counts = counts

    def convinces(self, now: float) -> bool:
        """Whether it may be told to others, if the entity has failed over."""
        if self._last_ping_counts is False:
            return False  # The entity answers, although it does not take messages.
        interval_is_over = now >= self.first_failure_at + self.failover_interval_s
        return not self.others or (self._last_ping_counts is True and interval_is_over)
