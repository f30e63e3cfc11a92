"""What other processes and hosts say of entities, and when that is enough to fail over early. Pure.

    evidence = Evidence(own_host, own_process, quorum=2)
    evidence.heard_on_board(notice, lives_s, now)       each message of the board, oldest first
    evidence.read_processes(notices_by_process, now)    the files of this host, all of them
    text = evidence.enough("orders", now)               None: not enough

Enough is one other process of this host, or a quorum of other hosts. What was heard ends by the
time of this process; no time in a notice is used, except in texts for people. A recovery ends what
was heard of its entity before: who was wrong about that, only delays a failover.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median_low
from typing import Final

from twinbus.fleet.core.notices import Notice

KEPT_MAX: Final = 10_000
"""Notices of other hosts that are kept. What comes when all are fresh is left out: anyone who may
write to the board can fill it, and then an entity fails over by its own interval."""

LIVES_MAX_S: Final = 600.0
"""A notice ends after this time, whatever its message says."""

PROCESS_LIVES_S: Final = 30.0
"""How long the files of this host count after they were read."""


@dataclass(frozen=True, slots=True)
class _Heard:
    notice: Notice
    until: float
    is_first_hand: bool
    """This process read it on the board itself. Only that is passed on: otherwise two processes
    would keep each other's notices alive."""


class Evidence:
    """The fresh notices of other hosts, and of other processes of this one."""

    def __init__(self, own_host: str, own_process: str = "", *, quorum: int) -> None:
        """`own_process`: its other pairs speak to this one, but their failures are its own."""
        assert quorum >= 1
        self.own_host = own_host
        self.own_process = own_process
        self.quorum = quorum
        self._kept = 0
        self._hosts: dict[str, dict[str, _Heard]] = {}
        """By entity, then by host."""
        self._recovered: dict[str, dict[str, _Heard]] = {}
        """By entity, then by host and epoch."""
        self._processes: dict[str, dict[str, Notice]] = {}
        """By entity, then by process of this host."""
        self._processes_until = 0.0

    def __repr__(self) -> str:
        return f"<evidence: {self._kept} notices of hosts, {len(self._processes)} entities here>"

    def heard_on_board(self, notice: Notice, lives_s: float, now: float) -> bool:
        """Take a message of the board, the oldest first; return whether it is a new recovery.

        `lives_s`: how long it counts from now on.
        """
        if notice.host == self.own_host:
            return False  # Its processes have files; on the board it may be forged.
        if notice.recovered:
            return self._heard_recovery(notice, lives_s, now, is_first_hand=True)
        self._keep(self._hosts, notice.host, notice, lives_s, now, is_first_hand=True)
        return False

    def read_processes(self, found: Mapping[str, Sequence[Notice]], now: float) -> list[Notice]:
        """Take all that the other processes of this host say; return the new recoveries.

        A process may pass on what it read on the board: recoveries first, then the notices of
        other hosts that it heard after them.
        """
        every = [(process, notice) for process, notices in found.items() for notice in notices]
        news, ended = [], dict[str, int]()
        for _, notice in every:
            if notice.recovered:
                if self._heard_recovery(notice, PROCESS_LIVES_S, now, is_first_hand=False):
                    news.append(notice)
                if notice.host == self.own_host:
                    key = notice.entity_key
                    ended[key] = max(notice.epoch, ended.get(key, 0))
        processes: dict[str, dict[str, Notice]] = {}
        for process, notice in every:
            if notice.recovered:
                continue
            if notice.host != self.own_host:
                lives_s = PROCESS_LIVES_S
                self._keep(self._hosts, notice.host, notice, lives_s, now, is_first_hand=False)
            elif notice.epoch > ended.get(notice.entity_key, -1):
                processes.setdefault(notice.entity_key, {})[process] = notice
        self._processes, self._processes_until = processes, now + PROCESS_LIVES_S
        return news

    def enough(self, entity: str, now: float) -> str | None:
        """Return who says that the entity failed over, if they are enough; None: they are not."""
        is_enough = self._processes_of(entity, now) or self.hosts(entity, now) >= self.quorum
        return self.text(entity, now) if is_enough else None

    def text(self, entity: str, now: float) -> str:
        """Return who says that the entity failed over, for people; empty: nobody does."""
        hosts, processes = self._hosts_of(entity, now), self._processes_of(entity, now)
        counts = [
            *([_counted(len(processes), "process", "es")] if processes else []),
            *([_counted(len(hosts), "host", "s")] if hosts else []),
        ]
        if not counts:
            return ""
        # Half of the clocks may be wrong.
        since = median_low(notice.since for notice in (*processes, *hosts))
        return f"{' and '.join(counts)} since {datetime.fromtimestamp(since, UTC):%H:%M:%S} UTC"

    def hosts(self, entity: str, now: float) -> int:
        """Other hosts with a fresh notice about the entity."""
        return len(self._hosts_of(entity, now))

    def of_host(self, now: float) -> list[Notice]:
        """What the other pairs of this host say, one notice for each entity."""
        if now > self._processes_until:
            return []
        return [next(iter(said.values())) for said in self._processes.values()]

    def of_board(self, now: float) -> list[Notice]:
        """What this process read on the board, for the other processes of this host."""
        # Recoveries first: a notice that is still there was heard after them.
        return [
            heard.notice
            for book in (self._recovered, self._hosts)
            for said in book.values()
            for heard in said.values()
            if heard.is_first_hand and heard.until > now
        ]

    def hosts_seen(self, now: float) -> int:
        """Other hosts with a fresh notice about any entity."""
        # Copies: a status is read on other threads too, while this one hears of more.
        said = [heard for hosts in list(self._hosts.values()) for heard in list(hosts.values())]
        return len({heard.notice.host for heard in said if heard.until > now})

    def forget(self, now: float) -> None:
        """Drop what has ended."""
        for book in (self._hosts, self._recovered):
            for entity in list(book):
                fresh = {host: one for host, one in book[entity].items() if one.until > now}
                self._kept -= len(book[entity]) - len(fresh)
                if fresh:
                    book[entity] = fresh
                else:
                    del book[entity]

    def _heard_recovery(
        self, notice: Notice, lives_s: float, now: float, *, is_first_hand: bool
    ) -> bool:
        """Drop what other hosts said of the entity before; return whether this is news.

        Each recovery of a host is kept, for one that is forged must not hide the real one.
        """
        key = f"{notice.host} {notice.epoch}"
        known = self._recovered.get(notice.entity_key, {}).get(key)
        is_known = known is not None and known.until > now
        self._keep(self._recovered, key, notice, lives_s, now, is_first_hand=is_first_hand)
        self._kept -= len(self._hosts.pop(notice.entity_key, {}))
        return not is_known

    def _keep(
        self,
        book: dict[str, dict[str, _Heard]],
        key: str,
        notice: Notice,
        lives_s: float,
        now: float,
        *,
        is_first_hand: bool,
    ) -> None:
        known = book.get(notice.entity_key, {}).get(key)
        if known is not None and known.until > now:
            is_older = known.notice.epoch > notice.epoch
            if is_older or (known.is_first_hand and not is_first_hand):
                return
        if known is None:
            if self._kept >= KEPT_MAX:
                self.forget(now)
            if self._kept >= KEPT_MAX:
                return
            self._kept += 1
        until = now + min(max(lives_s, 0.0), LIVES_MAX_S)
        book.setdefault(notice.entity_key, {})[key] = _Heard(notice, until, is_first_hand)

    def _hosts_of(self, entity: str, now: float) -> list[Notice]:
        said = self._hosts.get(entity.lower(), {})
        return [heard.notice for heard in list(said.values()) if heard.until > now]

    def _processes_of(self, entity: str, now: float) -> list[Notice]:
        if now > self._processes_until:
            return []
        said = self._processes.get(entity.lower(), {})
        return [notice for process, notice in said.items() if process != self.own_process]


def _counted(count: int, noun: str, plural: str) -> str:
    return f"{count} other {noun}" if count == 1 else f"{count} other {noun}{plural}"
