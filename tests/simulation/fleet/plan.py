"""The shape of one fleet: how many hosts, who lies, what fails and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FAILOVER_S: Final = 60.0
PING_S: Final = 60.0
QUORUM: Final = 2
"""The defaults of the options."""

ENTITY: Final = "orders"

START_S: Final = 60.0
"""Until all processes have made their first look."""


@dataclass(frozen=True)
class Span:
    """From when until when something lasts."""

    begins: float
    ends: float

    def __contains__(self, at: float) -> bool:
        return self.begins <= at < self.ends


@dataclass(frozen=True)
class FleetPlan:
    """One fleet and its story."""

    hosts: int
    ends_s: float
    outages: tuple[Span, ...] = ()
    """Of the primary, for all hosts."""
    is_silent: bool = False
    """The primary does not answer in an outage; otherwise it refuses connections."""
    blips: tuple[float, ...] = ()
    """Outages of a second, in which each host sends."""
    single_failures: tuple[Span, ...] = ()
    """In each span every host has one attempt that fails, at a time of its own."""
    failure_lasts_s: float = 0.0
    """For how long the attempts of that host fail after that one."""
    pairs_of_processes: int = 0
    """Hosts with two processes."""
    liars: float = 0.0
    """Share of the hosts that post forged notices and nothing else, and have no pair."""
    wrong_clocks: float = 0.0
    """Share of the hosts whose clock is wrong by years."""
    board: str = ""
    """What is wrong with the board from the start on; empty: nothing."""
    late_hosts: float = 0.0
    """Share of the hosts that send seldom: their first failure comes when others have posted."""
    kills_holder_at: float | None = None
    """When the process with the lease of the pings is killed."""
    lying_holder: bool = False
    """A liar has the lease of the pings, and never pings."""
    is_forged_alone: bool = False
    """The liars have one id each, and name the honest hosts besides."""
    send_every_s: float = 12.0


def storms(hosts: int, *, liars: float = 0.0, board: str = "") -> FleetPlan:
    """A fleet that sees a blip, single failures and a real outage."""
    return FleetPlan(
        hosts=hosts,
        blips=(60.0,),
        single_failures=(Span(70.0, 100.0),),
        outages=(Span(240.0, 420.0),),
        ends_s=620.0,
        pairs_of_processes=hosts // 10,
        late_hosts=0.3,
        liars=liars,
        wrong_clocks=liars,
        board=board,
    )


def outage(hosts: int, *, board: str = "", lasts_s: float = 240.0) -> FleetPlan:
    """A fleet that sees an outage, with a board that may be useless."""
    return FleetPlan(
        hosts=hosts,
        outages=(Span(100.0, 100.0 + lasts_s),),
        ends_s=100.0 + lasts_s + 200.0,
        is_silent=board == "slow",
        board=board,
        late_hosts=0.3,
    )


def dead_pinger(hosts: int) -> FleetPlan:
    """The process that pings for all is killed in an outage."""
    return FleetPlan(
        hosts=hosts, outages=(Span(100.0, 1_300.0),), kills_holder_at=400.0, ends_s=1_600.0
    )


def lying_pinger(hosts: int) -> FleetPlan:
    """A liar has the lease of the pings from the start."""
    return FleetPlan(hosts=hosts, outages=(Span(100.0, 400.0),), lying_holder=True, ends_s=1_300.0)


def slander(hosts: int) -> FleetPlan:
    """A third of the hosts lies, one of them has the lease of the pings, and the primary answers.

    Each honest host fails now and then: long enough to read the lies, and not again while its one
    live send tests them.
    """
    return FleetPlan(
        hosts=hosts,
        liars=0.3,
        lying_holder=True,
        single_failures=tuple(Span(100.0 * n, 100.0 * n + 40.0) for n in range(1, 9)),
        failure_lasts_s=12.0,
        ends_s=1_000.0,
    )


def forger() -> FleetPlan:
    """One honest host; a liar posts a notice of its own, and one in the name of that host."""
    return FleetPlan(
        hosts=2,
        liars=0.5,
        is_forged_alone=True,
        single_failures=tuple(Span(100.0 * n, 100.0 * n + 50.0) for n in range(1, 9)),
        ends_s=1_000.0,
    )
