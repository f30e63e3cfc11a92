"""Models a pair in a year with outages, to choose its options (docs/costs.md). Without Spark.

question    how often a primary is down, the traffic, and the settings to compare
simulation  the outcome of each setting over thousands of simulated years
plan        which setting to take, with the cost of a year beside Premium Geo-Replication
"""
