"""Pairing two namespaces: when a send leaves the primary, where it goes, and when it returns.

Pure, in virtual time: `failover` (one entity), `attempts` (one send call), `backlog` (paths, drift,
rotation), `classify` (what a failure says), `ping` (the message that asks). The shells beside them
perform what these decide.
"""
