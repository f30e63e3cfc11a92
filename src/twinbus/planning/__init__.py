"""What a pair would do in a year with outages, by arithmetic: for choosing its options (SPEC 8).

    outages   how often a primary is down, and how long
    model     what one outage does to callers, backlog and pings; and outages one after another
    money     what a year costs, against Premium with Geo-Replication
    advice    which of many settings to take, and why

Pure and without Spark. `twinbus.pipeline.planner` draws the outages and works the model out for
thousands of simulated years on Spark, with the same functions.
"""

from __future__ import annotations

from twinbus.planning.model import Setting, Traffic
from twinbus.planning.outages import OutagePattern, parse_pattern

__all__ = ["OutagePattern", "Setting", "Traffic", "parse_pattern"]
