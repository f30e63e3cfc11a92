"""The pairs that are shown, each with a version, so that a reader can take what changed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Pair = dict[str, Any]
"""One pair or syphon as the page shows it: a JSON document."""


class PairTable:
    """Documents by id. A document is replaced as a whole, never changed in place."""

    def __init__(self) -> None:
        self.pairs: dict[str, Pair] = {}
        self.versions: dict[str, int] = {}
        """Goes up with each change of a pair's document."""
        self.version = 0
        """The highest version so far."""
        self.removals = 0
        """How many pairs were removed so far."""

    def put(self, pair: Pair) -> None:
        """Show a pair, in place of its last document."""
        if self.pairs.get(pair["id"]) != pair:
            self.version += 1
            self.pairs[pair["id"]], self.versions[pair["id"]] = pair, self.version

    def remove(self, id_: str) -> None:
        """Show a pair no longer."""
        if self.pairs.pop(id_, None) is not None:
            self.removals += 1
            del self.versions[id_]

    def changed_since(self, version: int) -> Iterable[str]:
        """Return the ids of the pairs that changed after this version."""
        return [id_ for id_, changed in self.versions.items() if changed > version]
