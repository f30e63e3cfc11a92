"""The syphon: moves messages from backlog queues to their destinations on the primary.

`core` decides, and is pure: a `Pump` for each backlog queue. `relay` performs what the pump
decides, over raw AMQP. `host` runs the relays of a pair, or drains once and returns; `replaying`
replays dead letters.
"""

from __future__ import annotations
