"""The pure part of the fleet: it decides, takes `now`, and does no I/O."""

from __future__ import annotations
