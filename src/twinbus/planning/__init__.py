"""Models a pair in a year with outages, to choose its options (SPEC 8). Pure, without Spark.

    outages   how often a primary is down, and how long
    model     the effect of one outage, and of several, on callers, backlog and pings
    advice    which of the compared settings to take, and why
    plan      the result, with the cost of a year beside Premium Geo-Replication

`twinbus.pipeline.planner` draws the outages and computes the model for thousands of simulated years
on Spark, with the same functions.
"""

from __future__ import annotations

from twinbus.planning.model import Setting, Traffic
from twinbus.planning.outages import OutagePattern, parse_pattern

__all__ = ["OutagePattern", "Setting", "Traffic", "parse_pattern"]
