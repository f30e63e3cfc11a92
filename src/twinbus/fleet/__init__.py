"""The fleet: processes of one pair share evidence and recoveries, never commands.

`core` decides, and is pure. A *notice* says that an entity failed over, or that it answered a ping.
Processes of one host exchange notices in files, hosts over the *notice board*, a queue in the
secondary (`board`). What a process makes of a notice is its own decision.
"""

from __future__ import annotations
