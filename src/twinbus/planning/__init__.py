"""Models a pair in a year with outages, to choose its options (docs/costs.md). Without Spark.

outages     how often a primary is down, and how long
model       the effect of one outage, and of several, on callers, backlog and pings
simulation  the outcome of each setting over thousands of simulated years
advice      which of the compared settings to take, and why
plan        the result, with the cost of a year beside Premium Geo-Replication
"""
