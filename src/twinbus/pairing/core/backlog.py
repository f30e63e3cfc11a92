"""Backlog queues: their paths, their settings, and which of them are in use.

docs/production.md describes the queues; all senders of a pair share the rotation.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from itertools import chain
from typing import Final

from twinbus.pairing.core.secondary import SecondaryHealth, jittered
from twinbus.servicebus.names import FOREVER_MS

LEASE_MARK: Final = "x-twinbus-lease"
LEASE_LOCK_S: Final = 200.0
"""Lock duration of the lease queue: a syphon whose machine died blocks others for this time."""

OLD_LEASE_LOCK_S: Final = 30.0
"""The same as earlier versions created it; its renewals cost seven times as much."""

DELIVERIES_MIN: Final = 1_000
"""The least delivery count of a safe queue. A message uses up one delivery when a syphon is
restarted, or loses its connection or a lock, while it has the message."""

CUTS_MAX: Final = 2
"""Attempts in a row, ended by callers' timeouts, after which a sender leaves its queue."""

FIRST_PULL_S: Final = 30.0
LONGEST_PULL_S: Final = 600.0
"""A queue that failed is pulled for the first; each failure right after its return doubles that, up
to the second (docs/failures.md)."""

PROBES_IN_A_PULL: Final = 6
"""A pulled queue is probed after each sixth of its time: every 5 s at first, then up to 100 s."""


def lease_path(label: str) -> str:
    """The queue on whose sessions the pumps of a label hold their leases (docs/guarantees.md)."""
    return f"{label}/{LEASE_MARK}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BacklogDescription:
    """The settings of a queue that matter to a backlog; the defaults are those we create."""

    max_size_mb: int = 5_120
    max_delivery_count: int = 2_147_483_647
    default_ttl_ms: int = FOREVER_MS
    auto_delete_on_idle_ms: int = FOREVER_MS
    lock_duration_ms: int = 60_000
    dead_letter_on_expiration: bool = True
    enable_batched_operations: bool = True
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    enable_partitioning: bool = False
    forward_to: str | None = None
    forward_dead_letters_to: str | None = None
    status: str = "Active"


WANTED: Final = BacklogDescription()

BOARD: Final = BacklogDescription(
    max_size_mb=1_024, default_ttl_ms=300_000, dead_letter_on_expiration=False
)
"""The notice board as it is created. Its messages have a shorter time to live of their own, and
nobody wants them when it has ended."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One setting that differs from what we create; it is reported, never repaired."""

    setting: str
    wanted: object
    found: object
    danger: str = ""
    """What would happen to messages; empty: the queue is safe to use."""

    @property
    def unsafe(self) -> bool:
        return bool(self.danger)

    def __str__(self) -> str:
        danger = f": {self.danger}" if self.danger else ""
        return f"{self.setting} is {self.found!r}, not {self.wanted!r}{danger}"


def drift_of(found: BacklogDescription) -> tuple[Drift, ...]:
    return tuple(
        Drift(field.name, wanted, actual, _danger(field.name, found))
        for field in fields(BacklogDescription)
        if not _same(wanted := getattr(WANTED, field.name), actual := getattr(found, field.name))
    )


def board_flaws(found: BacklogDescription) -> tuple[str, ...]:
    """Why a queue cannot serve as a notice board; empty: it can."""
    flaws = {
        "it requires sessions, so it refuses posts": found.requires_session,
        "it forwards its messages": bool(found.forward_to),
        "it keeps expired messages as dead letters": found.dead_letter_on_expiration,
        f"its status is {found.status}": found.status.lower() != BOARD.status.lower(),
    }
    return tuple(text for text, is_so in flaws.items() if is_so)


def _same(wanted: object, actual: object) -> bool:
    # Services round the largest duration differently; past 10,000 years all of them mean never.
    if wanted == FOREVER_MS and isinstance(actual, int):
        return actual >= FOREVER_MS // 2
    if isinstance(wanted, str) and isinstance(actual, str):
        return wanted.lower() == actual.lower()
    return wanted == actual or (wanted is None and actual == "")


def _danger(setting: str, found: BacklogDescription) -> str:
    if setting == "default_ttl_ms" and found.dead_letter_on_expiration:
        return ""
    if setting == "max_delivery_count" and found.max_delivery_count >= DELIVERIES_MIN:
        return ""
    return DANGERS.get(setting, "")


DANGERS: Final = {
    "requires_duplicate_detection": "it would drop a message whose id it has seen",
    "requires_session": "it would refuse every message, because none has a session in the backlog",
    "forward_to": "its messages would go to a queue that no syphon drains",
    "forward_dead_letters_to": "dead letters would go to a queue that no tool reads",
    "status": "it does not take messages, or does not give them back",
    "auto_delete_on_idle_ms": "the service would delete it with its messages while it is idle",
    "max_delivery_count": "it would dead-letter a message that a syphon received this often and"
    " could not deliver yet",
    "default_ttl_ms": "its messages would expire, and without dead-lettering they would be lost",
}
"""Drift that would lose, refuse or hide messages (docs/production.md)."""


class PullCause(Enum):
    """Why a queue was pulled; only what an attached link can disprove is probed."""

    SILENT = "it did not answer"
    REFUSED = "it refused a message"
    FULL = "it has no space, which an attached link does not show"


@dataclass(slots=True)
class _QueueUse:
    """One backlog queue in the rotation."""

    pulled_until: float | None = None
    pulls: int = 0
    reason: str = ""
    cause: PullCause = PullCause.REFUSED
    probe_every_s: float = FIRST_PULL_S / PROBES_IN_A_PULL
    probe_at: float = math.inf
    """When it is probed next; infinite: not in this pull."""
    is_on_trial: bool = False
    """A probe has returned it, and it has stored no message since. If it fails again, an attached
    link says nothing about its messages, and the next pull ends by time."""


class Rotation:
    """The backlog queues in use; all senders of a pair share what each learns."""

    def __init__(self, queues: Iterable[str] = ()) -> None:
        self.secondary = SecondaryHealth()
        """The namespace that has these queues."""
        self._queues: dict[str, _QueueUse] = {queue: _QueueUse() for queue in queues}
        self._twins: dict[str, _QueueUse] = {}
        """Twins that may be used, by path: each is for its own entity only (`core.twins`)."""
        self._left_out: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Rotation({sorted(self._queues)}, left_out={self._left_out})"

    @property
    def protected(self) -> bool:
        """Whether there is any backlog queue to divert to, pulled or not."""
        return bool(self._queues)

    @property
    def queues(self) -> tuple[str, ...]:
        """All available queues, pulled or not."""
        return tuple(self._queues)

    def has(self, place: str) -> bool:
        """Whether a backlog queue or a twin is available, pulled or not."""
        return place in self._queues or place in self._twins

    def is_twin(self, place: str) -> bool:
        return place in self._twins

    @property
    def twins(self) -> tuple[str, ...]:
        return tuple(self._twins)

    def add_twin(self, path: str) -> None:
        assert path not in self._queues, f"{path} is a backlog queue"
        self._twins.setdefault(path, _QueueUse())

    def drop_twin(self, path: str) -> None:
        """Use this twin no more."""
        self._twins.pop(path, None)
        self.secondary.forget(path)

    def _use(self, place: str) -> _QueueUse | None:
        return self._queues.get(place) or self._twins.get(place)

    def add(self, queue: str) -> None:
        self._left_out.pop(queue, None)
        self._queues.setdefault(queue, _QueueUse())

    def leave_out(self, queue: str, reason: str) -> None:
        """Keep a queue out until `add`: it is not available, or must not be used."""
        self._queues.pop(queue, None)
        self._left_out[queue] = reason

    def pull(
        self,
        queue: str,
        reason: str,
        now: float,
        jitter: float = 0.0,
        *,
        cause: PullCause = PullCause.REFUSED,
    ) -> float | None:
        """Pull a queue that failed; return the time of its return, None if it is left out.

        `jitter`, from 0 to 1, makes the rest shorter by chance.
        """
        use = self._use(queue)
        if use is None:
            return None
        # Attempts that began before the pull fail after it; one outage counts once.
        if use.pulled_until is None or now >= use.pulled_until:
            rest_s = min(FIRST_PULL_S * 2.0 ** min(use.pulls, 32), LONGEST_PULL_S)
            use.pulls += 1
            use.pulled_until = now + jittered(rest_s, jitter)
            use.reason, use.cause = reason, cause
            use.probe_every_s = rest_s / PROBES_IN_A_PULL
            is_probed = cause is not PullCause.FULL and not use.is_on_trial
            use.probe_at = now + jittered(use.probe_every_s, jitter) if is_probed else math.inf
        return use.pulled_until

    def next_probe(self, now: float) -> tuple[str, float] | None:
        """The pulled queue to attach a link to next, and when; None: there is none."""
        probes = [
            (use.probe_at, queue)
            for queue, use in chain(self._queues.items(), self._twins.items())
            if use.probe_at < math.inf and not self.is_in(queue, now)
        ]
        if not probes:
            return None
        at, queue = min(probes)
        return queue, at

    def probe_ended(self, queue: str, now: float, jitter: float) -> None:
        """A probe ended: unless it returns the queue, the next one follows after a pause."""
        use = self._use(queue)
        if use is not None and use.probe_at < math.inf:
            use.probe_at = now + jittered(use.probe_every_s, jitter)

    def attached(self, queue: str, now: float) -> bool:
        """A link to the queue was attached; return whether that ends its pull.

        The next failure counts as one right after a return: only a stored message is a success.
        """
        use = self._use(queue)
        if use is None or use.probe_at == math.inf or self.is_in(queue, now):
            return False
        use.pulled_until, use.probe_at, use.is_on_trial = None, math.inf, True
        return True

    def succeeded(self, queue: str) -> None:
        """The queue stored a message: it returns, and its next failure counts as the first."""
        use = self._use(queue)
        if use is not None and use.pulls:
            (self._twins if queue in self._twins else self._queues)[queue] = _QueueUse()

    def is_in(self, queue: str, now: float) -> bool:
        """Whether a sender may use the queue now; a pulled one returns without another event."""
        use = self._use(queue)
        return use is not None and (use.pulled_until is None or now >= use.pulled_until)

    def is_refusing(self, queue: str, now: float) -> bool:
        """Whether the queue is left out, or is pulled now because it refused messages."""
        use = self._use(queue)
        return use is None or (use.cause is not PullCause.SILENT and not self.is_in(queue, now))

    def available(self, now: float, without: Collection[str] = ()) -> list[str]:
        return [q for q in self._queues if q not in without and self.is_in(q, now)]

    @property
    def left_out(self) -> dict[str, str]:
        """Queues that are not available or must not be used, and why."""
        return dict(self._left_out)

    def pulled(self, now: float) -> dict[str, tuple[str, float]]:
        """Queues and twins that are pulled now: why, and for how many more seconds. Thread-safe."""
        return {
            queue: (use.reason, use.pulled_until - now)
            for queue, use in [*self._queues.items(), *self._twins.items()]
            if use.pulled_until is not None and now < use.pulled_until
        }

    def resting(self, now: float, without: Collection[str] = ()) -> list[str]:
        return [q for q in self._queues if q not in without and not self.is_in(q, now)]

    def absences(self, now: float, twin: str | None = None) -> dict[str, str]:
        """Every queue that is not in use now, and why, for errors; also this twin."""
        pulled = {
            queue: f"{reason} (back in {rest_s:.0f} s)"
            for queue, (reason, rest_s) in self.pulled(now).items()
            if queue == twin or queue in self._queues
        }
        lost: dict[str, str] = {}
        if self.secondary.is_lost:
            why = f"the secondary cannot be reached: {self.secondary.reason}"
            lost = dict.fromkeys(self._queues, why)
        return {**lost, **self._left_out, **pulled}


class KeptChoice:
    """One sender's backlog queue: chosen at random at its first diversion, and kept.

    None of the queues in `tried` is chosen.
    """

    __slots__ = ("_cuts", "_left", "_pick", "_rotation", "kept")

    twin: str | None = None
    """The twin among the places to choose from; None: they are all backlog queues."""

    def __init__(self, rotation: Rotation, pick: Callable[[Sequence[str]], str]) -> None:
        self._rotation = rotation
        self._pick = pick
        self.kept: str | None = None
        self._cuts = 0
        """Attempts on the kept queue that callers' timeouts ended, since it last answered."""
        self._left: str | None = None
        """The queue that was left for that reason: any other comes first."""

    @property
    def protected(self) -> bool:
        return self._rotation.protected

    def choose(self, now: float, tried: Collection[str] = ()) -> str | None:
        """The kept queue while it can be used, else another by `pick`; None: none is left."""
        if self.kept is None or self.kept in tried or not self._rotation.is_in(self.kept, now):
            candidates = self._rotation.available(now, tried)
            others = [queue for queue in candidates if queue != self._left]
            self.kept = self._pick(others or candidates) if candidates else None
            self._cuts = 0
        return self.kept

    def cut_short(self, queue: str, now: float) -> None:
        """A caller's own timeout ended an attempt; after two in a row the sender leaves the queue.

        Callers that are hastier than an attempt would never prove that the queue hangs.
        """
        if queue != self.kept:
            return
        self._cuts += 1
        if self._cuts >= CUTS_MAX:
            self._left, self.kept = queue, None

    def answered(self, queue: str) -> None:
        if queue == self.kept:
            self._cuts = 0

    def resting(self, now: float, tried: Collection[str] = ()) -> str | None:
        candidates = self._rotation.resting(now, tried)
        return self._pick(candidates) if candidates else None

    @property
    def outlasts_refusals(self) -> bool:
        """Whether a call waits for a queue that refused its message."""
        return True

    def may_return(self, now: float, tried: Collection[str] = ()) -> bool:
        """Whether it is worth waiting: a queue may return that was not tried."""
        return any(queue not in tried for queue in self._rotation.queues)

    @property
    def is_lost(self) -> bool:
        return self._rotation.secondary.is_lost

    def is_turn(self, now: float) -> bool:
        return self._rotation.secondary.is_turn(now)


def session_queue(paths: Sequence[str], entity_path: str, session_id: str) -> str:
    """The backlog queue of a session under strict order."""
    # The same queue in every process and after every restart, so not Python's `hash`.
    key = f"{entity_path.lower()}\0{session_id}".encode()
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return paths[int.from_bytes(digest, "big") % len(paths)]
