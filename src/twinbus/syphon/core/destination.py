"""The state of one destination on the primary (docs/guarantees.md).

unattached --attach--> attached --refusal of the entity--> held --back-off--> on trial, with
                          ^                                  ^                one message
                          '-------- it was accepted ---------+--- it was not ---'
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from twinbus.transfer.unpacking import BacklogMessage

FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 60.0
"""First and longest pause before a refusing destination is tried again; it doubles each time."""

BACKOFF_JITTER: Final = 0.5
"""A pause is longer by up to this share, by chance, so that pumps do not try all at once."""

IDLE_LINK_S: Final = 60.0
"""A link that carried nothing for this time is closed: a peer limits their number."""

ANY_NUMBER: Final = 1 << 30
"""No limit for one destination; the limit of the pump holds."""

WINDOW_MAX: Final = 1_000
"""A destination that takes this many at once has no limit of its own any more."""

ATTACHED_SOON_S: Final = 2.0
"""An attach usually takes milliseconds. If it takes longer, what waits for it must not block the
other destinations."""

ATTACH_ANSWER_S: Final = 10.0
"""An attach without an answer is given up after this time, or sooner with a shorter `answer_s`. It
carries no message, so that another one duplicates nothing, and an entity that hung does not answer
the old one when it works again."""

RECENT_S: Final = 10.0
"""A destination that accepted a message within this time is progressing."""


@dataclass(slots=True, eq=False, repr=False)
class Destination:
    """The messages to one entity of the primary, and whether more may be sent."""

    path: str
    attached: bool = False
    attached_at: float = float("-inf")
    attach_at: float | None = None
    """When an attach was requested that is not answered yet."""
    credit: int = 0
    limit_bytes: int = 0
    """Largest message that the link accepts; 0: unknown."""
    window: int = ANY_NUMBER
    waiting: deque[BacklogMessage] = field(default_factory=deque)
    unsorted: bool = False
    """Messages came back to `waiting` out of order."""
    sent: dict[bytes, BacklogMessage] = field(default_factory=dict)
    """In flight, the oldest first, by lock token."""
    deferred: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Sequence numbers of deferred messages. An OrderedDict, because taking from the front of a
    plain dict is slow."""
    held_until: float | None = None
    """None: it is not held."""
    is_on_trial: bool = False
    """It was held, and one message tries whether it accepts again."""
    is_selected: bool = True
    """The syphon serves it."""
    reason: str = ""
    backoff_s: float = 0.0
    missing_since: float | None = None
    accepted_at: float = float("-inf")
    progressed: bool = False
    """It accepted a message since its link was attached."""
    is_careful: bool = False
    """The link was closed for the content of one message: send one at a time to find it."""

    def __repr__(self) -> str:
        state = "open" if self.held_until is None else f"held: {self.reason}"
        return f"<{self.path}, {state}, {len(self.sent)} sent, {len(self.waiting)} waiting>"

    def is_progressing(self, now: float) -> bool:
        """Return whether messages to it arrive, so that held destinations must not block it."""
        if self.held_until is not None:
            return False
        return bool(self.sent or self.waiting) or now - self.accepted_at < RECENT_S

    @property
    def is_held(self) -> bool:
        """Whether nothing may be sent to it."""
        return self.held_until is not None and not self.is_on_trial

    @property
    def ready(self) -> int:
        """How many messages could be sent to it now."""
        if not self.attached or self.is_held:
            return 0
        return max(0, min(len(self.waiting), self.credit, self.window - len(self.sent)))

    def size_problem(self, message: BacklogMessage) -> str:
        """Return what to say of a message that is larger than the link accepts."""
        return f"the message has {len(message.wire)} bytes; {self.path} accepts {self.limit_bytes}"

    def is_given_up(self, grace_s: float, now: float) -> bool:
        """Return whether it has been missing for the whole grace period."""
        return self.missing_since is not None and now - self.missing_since >= grace_s

    def remove_unsendable(self, message: BacklogMessage, *, is_up: bool) -> bool:
        """Remove a message that cannot be sent; false if it is sent, or will be soon."""
        if message.lock_token in self.sent or (is_up and not self.is_held):
            return False
        self.waiting.remove(message)
        return True

    def due_at(self, answer_s: float) -> float | None:
        """Return when its back-off, or the time for an answer, ends; None: neither is running."""
        if self.is_held:
            return self.held_until
        if self.attach_at is not None:
            is_late = self.held_until is not None
            longest_s = ATTACH_ANSWER_S if is_late else ATTACHED_SOON_S
            return self.attach_at + min(answer_s, longest_s)
        return next((oldest.sent_at + answer_s for oldest in self.sent.values()), None)

    def hold(self, reason: str, now: float, chance: float) -> None:
        """Send it nothing until the back-off ends, which doubles each time in a row.

        `chance` is a random number from 0 to 1.
        """
        if not self.is_held:
            self.backoff_s = min(max(FIRST_BACKOFF_S, self.backoff_s * 2), LONGEST_BACKOFF_S)
            self.held_until = now + self.backoff_s * (1 + BACKOFF_JITTER * chance)
            self.is_on_trial = False
        self.reason = reason
        self.window = 1

    def deselect(self) -> None:
        """Never send it anything: the syphon serves others only."""
        self.is_selected = False
        self.held_until = float("inf")

    def is_idle(self, now: float) -> bool:
        """Return whether nothing was or is to be sent for a while."""
        if self.sent or self.waiting or self.deferred or self.held_until is not None:
            return False
        return self.attach_at is None and now - max(self.attached_at, self.accepted_at) >= (
            IDLE_LINK_S
        )

    def is_late(self, now: float) -> bool:
        """Return whether an attach takes unusually long."""
        if self.attach_at is None or self.held_until is not None:
            return False
        return now >= self.attach_at + ATTACHED_SOON_S

    def doubt(self, now: float) -> None:
        """Hold it while the attach is unanswered; try it with one message first."""
        self.held_until = now
        self.reason = (
            f"an attach to {self.path} is not answered; another follows after {ATTACH_ANSWER_S:g} s"
        )
        self.start_trial()

    def start_trial(self) -> None:
        """Try with one message whether it accepts again."""
        self.is_on_trial = True
        self.window = 1

    def succeeded(self, count: int, now: float) -> None:
        """Note that it accepted `count` messages: it is no longer held.

        What may be in flight grows from one message on by three for each that was accepted: what
        comes back does not get everything at once.
        """
        self.accepted_at = now
        self.progressed = True
        self.backoff_s = 0.0
        self.missing_since = None
        if self.is_on_trial:
            self.is_on_trial = False
            self.held_until = None
        if self.window < ANY_NUMBER and (not self.is_careful or not self.waiting):
            self.is_careful = False
            self.window += 3 * count
            if self.window > WINDOW_MAX:
                self.window = ANY_NUMBER

    def drop_link(self) -> list[BacklogMessage]:
        """Forget the link; return what was in flight on it, which waits again."""
        back = list(self.sent.values())
        self.sent.clear()
        self.waiting.extendleft(reversed(back))
        self.unsorted = self.unsorted or bool(back)
        self.attached = self.progressed = False
        self.attach_at = None
        self.credit = 0
        return back

    def return_to_waiting(self, message: BacklogMessage) -> None:
        """Let a refused message wait again."""
        self.waiting.appendleft(message)
        self.unsorted = True

    def take_waiting(self) -> list[BacklogMessage]:
        """Remove and return all waiting messages."""
        taken = list(self.waiting)
        self.waiting.clear()
        return taken

    def next_waiting(self) -> BacklogMessage:
        """Remove and return the message to send next, in the order of the backlog queue."""
        if self.unsorted:
            self.waiting = deque(sorted(self.waiting, key=lambda each: each.sequence_number))
            self.unsorted = False
        return self.waiting.popleft()


class Destinations:
    """The destinations that messages of one backlog queue belong to, and the primary's state."""

    def __init__(self, undeliverable_grace_s: float) -> None:
        self.by_key: dict[str, Destination] = {}
        """By path in lower case."""
        self.held: set[str] = set()
        """Keys of destinations that took nothing when last tried, those on trial included."""
        self.only: frozenset[str] | None = None
        """Keys of the destinations to serve; None: all."""
        self.grace_s = undeliverable_grace_s
        self.draw: Callable[[], float] = lambda: 0.0
        """Random numbers from 0 to 1; none: no jitter."""
        self.is_primary_up = False
        self.primary_answered_at = float("-inf")
        """When the primary last answered anything, for any destination."""

    def __iter__(self) -> Iterator[Destination]:
        return iter(self.by_key.values())

    def find(self, path: str) -> Destination | None:
        """Return the destination with that path, in any case, if there is one."""
        return self.by_key.get(path.lower())

    def add(self, path: str) -> Destination:
        """Return the destination with that path; create it if there is none."""
        destination = self.by_key.get(path.lower())
        if destination is None:
            destination = self.by_key[path.lower()] = Destination(path)
            if not self.is_selected(path):
                destination.deselect()
        return destination

    def is_selected(self, path: str) -> bool:
        """Return whether the syphon serves this path."""
        return self.only is None or path.lower() in self.only

    def held_ones(self) -> list[Destination]:
        """Return the destinations that took nothing when last tried."""
        return [self.by_key[key] for key in self.held]

    def any_progress(self, now: float) -> bool:
        """Return whether some destination takes messages."""
        return any(destination.is_progressing(now) for destination in self)
