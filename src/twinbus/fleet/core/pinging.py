"""Who pings each entity that has failed over, and when a recovery is tried. Pure.

One process pings for all: in each host the one that has the host's role for the entity, and among
these the one that holds the entity's lease in the secondary. The others ping seldom, so that a
pinger that is dead or lies delays a recovery and never prevents it. Where no lease can be had, or
hosts tell each other nothing, each host pings.

    pinging = Pinging(ping_interval_s)
    pinging.watch(failed_over, now, chance)       whenever an entity has changed
    for act in pinging.take(now): ...             at `due_at`
    if pinging.pings("orders", standing, now): ...
    pinging.heard_recovery("orders", now, chance)

Times and chances, numbers from 0 to 1, are arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

SLOW_INTERVALS: Final = 10
"""Ping intervals between two pings of a process that leaves them to another."""

SHARED_MAX: Final = 100
"""Entities whose pings a process shares: each takes a link and an open file. The pings of more are
sent by each process."""

COMPETE_SPREAD: Final = 0.25
"""Share of the ping interval within which a process asks for its first lease after a failover: all
hosts see the same failure, and the first ping is due after 0.4 intervals if it came early."""

COMPETE_SPACING_S: Final = 10.0
"""Time between the first requests for two leases. A thousand hosts together then make a hundred
requests a second, however many entities have failed over."""

STANDBY_INTERVALS_MIN: Final = 3
STANDBY_MIN_S: Final = 30.0
"""Least time between two requests for a lease that another host has, in ping intervals and seconds.
With more entities the time grows, so that a host makes one request in a ping interval."""

TRY_SPREAD_S: Final = 5.0
"""Time within which processes that hear of a recovery try the primary; a ping interval at most."""

UNASKED_INTERVALS: Final = 3
"""Ping intervals after which a process that is not about to ping leaves that to others: a person
has frozen the entity."""

SESSION_LENGTH_MAX: Final = 128
"""Characters of a session id; the path of an entity may have 260."""

PREFIX: Final = "ping/"


class Standing(Enum):
    """What a process is for an entity."""

    HOLDER = "it has the lease: it pings for all hosts"
    STANDBY = "another host has the lease"
    FOLLOWER = "another process of this host has the role"
    ALONE = "no lease can be had, or it was not granted yet: it pings for its host"
    UNSHARED = "no lease is asked for: it pings for its host"


@dataclass(frozen=True, slots=True)
class Compete:
    """Ask for the right to ping this entity."""

    key: str


@dataclass(frozen=True, slots=True)
class LeaveToOthers:
    """Give the right back, if this process has it or waits for it."""

    key: str


@dataclass(frozen=True, slots=True)
class TryOnce:
    """Let one live send of this entity try the primary."""

    key: str


Act = Compete | LeaveToOthers | TryOnce


class _Entity:
    def __init__(self, compete_at: float, left_out: int, now: float) -> None:
        self.compete_at: float | None = compete_at
        """When to ask for the right; None: it was asked for."""
        self.left_out = left_out
        """Pings that were left to another since the last one of this process."""
        self.asked_at = now
        """When a ping was due last."""
        self.try_at: float | None = None
        self.no_try_before = float("-inf")


class Pinging:
    """The pings of one process. A key is the path of an entity in lower case."""

    def __init__(self, ping_interval_s: float) -> None:
        self._interval_s = ping_interval_s
        self._entities: dict[str, _Entity] = {}
        self._next_compete_at = float("-inf")

    def __repr__(self) -> str:
        return f"<pinging of {len(self._entities)} entities>"

    @property
    def standby_s(self) -> float:
        """Mean time between two requests for a lease that another host has."""
        intervals = max(STANDBY_INTERVALS_MIN, len(self._entities))
        return max(STANDBY_MIN_S, self._interval_s * intervals)

    @property
    def due_at(self) -> float | None:
        """When to call `take`; None: there is nothing to do."""
        times = [
            at
            for one in self._entities.values()
            for at in (
                one.compete_at,
                one.try_at,
                self._unasked_at(one) if one.compete_at is None else None,
            )
            if at is not None
        ]
        return min(times, default=None)

    def watch(self, keys: Set[str], now: float, chance: float) -> list[LeaveToOthers]:
        """Take the entities that have failed over; return those that are no longer among them."""
        gone = [key for key in self._entities if key not in keys]
        for key in gone:
            del self._entities[key]
        for key in sorted(keys):
            if key in self._entities or len(self._entities) >= SHARED_MAX:
                continue
            spread_s = chance * COMPETE_SPREAD * self._interval_s
            at = max(now + spread_s, self._next_compete_at)
            self._next_compete_at = at + COMPETE_SPACING_S
            self._entities[key] = _Entity(at, int(chance * SLOW_INTERVALS), now)
        return [LeaveToOthers(key) for key in gone]

    def take(self, now: float) -> list[Act]:
        """Return what is due."""
        acts: list[Act] = []
        for key, one in self._entities.items():
            if one.try_at is not None and now >= one.try_at:
                one.try_at = None
                one.no_try_before = now + self._interval_s
                acts.append(TryOnce(key))
            if one.compete_at is None:
                if now >= self._unasked_at(one):
                    one.compete_at = float("inf")
                    acts.append(LeaveToOthers(key))
            elif now >= one.compete_at:
                one.compete_at = None
                acts.append(Compete(key))
        return acts

    def pings(self, key: str, standing: Standing, now: float) -> bool:
        """Whether the ping that is due now is sent; asked once for each."""
        one = self._entities.get(key)
        if one is None:
            return True
        one.asked_at = now
        is_resting = one.compete_at is not None and one.compete_at < float("inf")
        if standing in (Standing.FOLLOWER, Standing.UNSHARED) and not is_resting:
            # The process that has the role may be gone, the board may be back, or a person has
            # released the entity.
            one.compete_at = now
        one.left_out += 1
        is_due = one.left_out >= SLOW_INTERVALS
        if is_due or standing not in (Standing.STANDBY, Standing.FOLLOWER):
            one.left_out = 0
            return True
        return False

    def not_allowed(self, key: str, now: float) -> LeaveToOthers | None:
        """A ping showed that this process may not send to the entity: another one should ping."""
        one = self._entities.get(key)
        if one is None:
            return None
        one.compete_at = now + SLOW_INTERVALS * self._interval_s
        return LeaveToOthers(key)

    def heard_recovery(self, key: str, now: float, chance: float) -> None:
        """Another process says that the entity answers: try it soon, once in a ping interval.

        One who lies costs one live send the time of an attempt, and no more in an interval. What
        comes earlier waits for the end of the interval: it may be the truth after a lie.
        """
        one = self._entities.get(key)
        if one is not None and one.try_at is None:
            spread_s = chance * min(TRY_SPREAD_S, self._interval_s)
            one.try_at = max(now, one.no_try_before) + spread_s

    def _unasked_at(self, one: _Entity) -> float:
        return one.asked_at + UNASKED_INTERVALS * self._interval_s


def ping_session(key: str) -> str:
    """Return the session whose lock is the right to ping an entity for all hosts."""
    name = PREFIX + key
    if len(name) <= SESSION_LENGTH_MAX:
        return name
    return PREFIX + hashlib.sha256(key.encode()).hexdigest()
