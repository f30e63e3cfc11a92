"""What clients saw of a broker that was killed again and again, and whether it kept its word.

A client notes what it attempts, what was acknowledged, what arrived, what it asked to complete and
what was confirmed. Between asking and the broker's answer anything may be true, so nothing is
claimed of it; everything else is.
"""

from __future__ import annotations

from collections import Counter


class History:
    """One queue's messages, each known by a key that is sent once."""

    def __init__(self, name: str, *, may_vanish: int = 0) -> None:
        """`may_vanish`: messages that may be lost on their way to a receive-and-delete client."""
        self.name = name
        self.may_vanish = may_vanish
        self.acknowledged: set[str] = set()
        self.confirmed: set[str] = set()
        self.arrivals: Counter[str] = Counter()
        self._attempted: set[str] = set()
        self._asked: set[str] = set()
        self._batches: list[tuple[str, ...]] = []
        self._wrong: list[str] = []

    @property
    def waiting(self) -> int:
        """About how many messages the queue should hold."""
        return len(self.acknowledged) - len(self.confirmed)

    @property
    def is_whole(self) -> bool:
        """Whether everything that must arrive has arrived, or somebody has asked to complete it."""
        missing = self.acknowledged - self._asked - self.arrivals.keys()
        return len(missing) <= self.may_vanish

    def attempt(self, *keys: str) -> None:
        """A send of one message or of a whole batch begins."""
        self._attempted.update(keys)
        if len(keys) > 1:
            self._batches.append(keys)

    def acknowledge(self, *keys: str) -> None:
        """The broker accepted a send."""
        self.acknowledged.update(keys)

    def arrive(self, key: str) -> None:
        """A message was delivered."""
        self.arrivals[key] += 1
        if key not in self._attempted:
            self._wrong.append(f"{self.name}: {key} was never sent")
        if key in self.confirmed:
            self._wrong.append(f"{self.name}: {key} came back after its completion was confirmed")

    def ask(self, key: str) -> None:
        """The client asked to complete a message."""
        self._asked.add(key)

    def confirm(self, key: str) -> None:
        """The broker confirmed a completion."""
        self.confirmed.add(key)

    def take(self, key: str) -> None:
        """A message arrived that the broker had deleted before it sent it."""
        self.arrive(key)
        self.ask(key)
        self.confirm(key)

    def problems(self) -> list[str]:
        """Every broken promise, once everything that was left has arrived."""
        lost = sorted(self.acknowledged - self._asked - self.arrivals.keys())
        wrong = list(self._wrong)
        if len(lost) > self.may_vanish:
            wrong += [f"{self.name}: {key} was acknowledged and is lost" for key in lost]
        for keys in self._batches:
            there = sum(1 for key in keys if self.arrivals[key])
            if there not in {0, len(keys)} and not self.may_vanish:
                wrong.append(
                    f"{self.name}: {there} of the {len(keys)} of batch {keys[0]} are there"
                )
        return wrong


class SessionHistory(History):
    """Also the order within each session; keys are numbers in the order in which they were sent."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._owed: set[str] = set()
        """Acknowledged, and nobody asked to complete it yet."""
        self._on_link: set[str] = set()
        self._last = -1

    def acknowledge(self, *keys: str) -> None:
        super().acknowledge(*keys)
        self._owed.update(key for key in keys if key not in self._asked)

    def ask(self, key: str) -> None:
        super().ask(key)
        self._owed.discard(key)

    def accept(self) -> None:
        """A client got the session: it will be given all that is left of it, in order."""
        self._on_link.clear()
        self._last = -1

    def arrive(self, key: str) -> None:
        number = int(key)
        if number <= self._last:
            self._wrong.append(f"{self.name}: {number} came after {self._last}")
        overtaken = sorted(int(each) for each in self._owed - self._on_link if int(each) < number)
        if overtaken:
            self._wrong.append(f"{self.name}: {number} came before {overtaken}")
        self._last = number
        self._on_link.add(key)
        super().arrive(key)
