"""Holds the right to ping for others: a role on the host, and a lease in the secondary.

    pinger = LeasedPinger(secondary, label, ping_interval_s, roles, try_primary)
    pinger.watch({"orders"})            the entities that have failed over
    if pinger.pings("orders"): ...      a ping is due
    await pinger.close()

The right to ping an entity for all hosts is the lock of the session `ping/<entity>` of
`<label>/x-twinbus-lease`. There is a connection for them only while an entity has failed over.
Nobody waits for a lease: until it is there, the process pings as one that is alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Set
from typing import Final

from twinbus.client.connection import MACHINE, Environment
from twinbus.client.lock_validity import LockAddress, lease_queue
from twinbus.client.session_locks import NOT_REQUESTED, LockTerms, SessionLocks
from twinbus.fleet.core.pinging import (
    PREFIX,
    Act,
    Compete,
    LeaveToOthers,
    Pinging,
    Standing,
    TryOnce,
    ping_session,
)
from twinbus.fleet.parts import HostRoles
from twinbus.ledger.requests import RequestLedger
from twinbus.namespace.access import Endpoint
from twinbus.status.fleet import EACH_PINGS

TAKEN: Final = "another host has the lease"


class LeasedPinger:
    """Who pings, as one process sees it. It belongs to the running event loop."""

    def __init__(
        self,
        secondary: Endpoint,
        label: str,
        ping_interval_s: float,
        roles: HostRoles,
        try_primary: Callable[[str], None],
        hears: Callable[[], bool],
        *,
        ledger: RequestLedger | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        """`label` is that of the primary; `try_primary` lets one live send of a path try it.

        `hears` returns whether hosts tell each other of recoveries; if not, each host pings.
        """
        self._secondary = secondary
        self._queue = lease_queue(label)
        self._pinging = Pinging(ping_interval_s)
        self._roles = roles
        self._try_primary = try_primary
        self._hears = hears
        self._ledger = ledger
        self._environment = environment
        self._terms = LockTerms(
            taken=TAKEN,
            log=logging.getLogger("twinbus.fleet"),
            level=logging.INFO,
            pause_s=lambda is_taken, lock_s: self._pinging.standby_s,
            reconnect_s=ping_interval_s,
            alone=False,
        )
        self._paths: dict[str, str] = {}
        """The entities that have failed over, by key."""
        self._leases: SessionLocks | None = None
        self._asked: set[str] = set()
        """Keys whose lease this process has or waits for."""
        self._followed: set[str] = set()
        """Keys whose role another process of this host has."""
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def watch(self, failed_over: Set[str]) -> None:
        """Take the entities that have failed over, after every change."""
        paths = {path.lower(): path for path in failed_over}
        if paths == self._paths:
            return
        self._paths = paths
        now, chance = self._now(), self._environment.chance()
        self._perform(self._pinging.watch(set(paths), now, chance))
        self._arm()

    def pings(self, path: str) -> bool:
        """Whether this process sends the ping that is due now."""
        key = path.lower()
        if not self._hears():
            self._give_back(key)
        answer = self._pinging.pings(key, self._standing(key), self._now())
        self._arm()
        return answer

    def not_allowed(self, path: str) -> None:
        """A ping showed that this process may not send to the entity."""
        if (act := self._pinging.not_allowed(path.lower(), self._now())) is not None:
            self._perform([act])
            self._arm()

    def speaks(self, path: str) -> bool:
        """Whether this process pings for all hosts, and tells them of an answer."""
        return self._standing(path.lower()) is Standing.HOLDER

    def heard_recovery(self, path: str) -> None:
        """Another process was answered: let one live send try the primary soon."""
        now, chance = self._now(), self._environment.chance()
        self._pinging.heard_recovery(path.lower(), now, chance)
        self._arm()

    def described(self, path: str) -> str:
        """Who pings the entity, for people."""
        key = path.lower()
        match self._standing(key):
            case Standing.HOLDER:
                return "this process, for all hosts"
            case Standing.STANDBY:
                return "another host"
            case Standing.FOLLOWER:
                return "another process of this host"
            case Standing.ALONE:
                assert self._leases is not None
                why = self._leases.problem(key)
                return EACH_PINGS if why in (None, NOT_REQUESTED) else f"{EACH_PINGS}: {why}"
        return EACH_PINGS

    async def close(self) -> None:
        self.watch(frozenset())
        if self._timer is not None:
            self._timer.cancel()
        if self._closing:
            await asyncio.wait(set(self._closing))

    def _standing(self, key: str) -> Standing:
        if key in self._followed:
            return Standing.FOLLOWER
        if self._leases is None or key not in self._asked:
            return Standing.UNSHARED
        why = self._leases.problem(key)
        if why is None:
            return Standing.HOLDER
        return Standing.STANDBY if why.startswith(TAKEN) else Standing.ALONE

    def _due(self) -> None:
        self._timer = None
        self._perform(self._pinging.take(self._now()))
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_at = self._pinging.due_at
        if due_at is not None and due_at < math.inf:
            wait_s = max(0.0, due_at - self._now())
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._due)

    def _perform(self, acts: list[Act] | list[LeaveToOthers]) -> None:
        for act in acts:
            match act:
                case Compete(key):
                    self._compete(key)
                case LeaveToOthers(key):
                    self._leave(key)
                case TryOnce(key):
                    self._try_primary(self._paths[key])

    def _compete(self, key: str) -> None:
        if not self._roles.hold(PREFIX + key):
            self._followed.add(key)
            return
        self._followed.discard(key)
        if key in self._asked or not self._hears():
            return
        self._asked.add(key)
        address = LockAddress(self._queue, ping_session(key))
        if self._leases is not None:
            self._leases.add(key, address)
            return
        self._leases = SessionLocks(
            self._secondary,
            {key: address},
            lambda name, is_held: None,
            self._terms,
            self._ledger,
            self._environment,
        )
        self._leases.start()

    def _leave(self, key: str) -> None:
        self._followed.discard(key)
        self._roles.let_go(PREFIX + key)
        self._give_back(key)

    def _give_back(self, key: str) -> None:
        """Release the lease of an entity, if this process has it or waits for it."""
        if self._leases is None or key not in self._asked:
            return
        self._asked.discard(key)
        self._leases.remove(key)
        if not self._asked:
            leases, self._leases = self._leases, None
            closing = asyncio.create_task(leases.close(), name="give back the ping leases")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _now(self) -> float:
        return self._environment.monotonic()
