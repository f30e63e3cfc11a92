"""The syphon: brings what was diverted to backlog queues back to where it belonged (SPEC 6).

`pump` decides for one backlog queue, `parcel` is one message on its way; both are pure. `relay`
moves the bytes over two `line`s, `host` runs the relays of a pair, or drains once and returns.
"""

from __future__ import annotations
