"""Pairing two namespaces: when a send leaves the primary, where it goes, and when it returns.

`core` decides, and is pure: `failover` (one entity), `attempts` (one send call), `backlog` (paths,
drift, rotation), `classify` (the meaning of a failure). The other packages perform what it decides.
"""
