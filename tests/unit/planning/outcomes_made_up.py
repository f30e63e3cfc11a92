"""Outcomes for tests of what is done with them: nothing is simulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twinbus.planning.question import (
    PlanQuestion,
    SampledMean,
    Setting,
    SettingOutcome,
    Traffic,
    grid,
    parse_pattern,
)

TRAFFIC = Traffic(rate_per_s=500, size_bytes=2_048, entities=40, clients=20)


def asked(**more: Any) -> PlanQuestion:
    known: dict[str, Any] = {"settings": grid([10, 60], [60], [5, 10]), **more}
    pattern = parse_pattern("2/year lognormal 40min")
    return PlanQuestion(**{"traffic": TRAFFIC, "patterns": (pattern,), **known})


def sure(value: float) -> SampledMean:
    return SampledMean(value, 0.0)


def outcome(
    failover_s: float = 10, ping_s: float = 60, queues: int = 10, **more: Any
) -> SettingOutcome:
    made = SettingOutcome(
        setting=Setting(float(failover_s), float(ping_s), queues),
        outages=sure(2),
        outage_s=sure(4_800),
        failovers=sure(2),
        raised=sure(0),
        refused=sure(0),
        diverted=sure(2_000_000),
        pings=sure(64_000),
        full=sure(0),
        queue_full=sure(0),
        polls=35_040 * queues,
        detection_s=failover_s + 0.8,
        recovery_s=ping_s / 2,
        peak_max=1_200_000,
        drain_p50_s=4_800,
        drain_p95_s=9_600,
        drain_max_s=20_000,
    )
    return replace(made, **more)
