"""What pairing tells and asks the fleet of a pair: the other processes with the same namespaces.

Pairing decides by itself and knows no other process. The fleet may pass it `OthersFailedOver` for
an entity, and has a say in who pings (docs/failures.md). Without a fleet everything is as for a
process that is alone.
"""

from __future__ import annotations

from typing import Protocol


class FleetOfPair(Protocol):
    """The other processes, as one pair sees them. Its methods run on the loop and never wait."""

    def changed(self, path: str) -> None:
        """An entity changed its state."""

    def pings(self, path: str) -> bool:
        """Whether this process pings the entity now; False: another one does.

        It is asked once for each ping that is due, so once in a ping interval.
        """

    def ping_ended(self, path: str, *, answered: bool, may_send: bool = True) -> None:
        """A ping of this process ended; `may_send`: it was not refused for lack of a right."""

    def said_of(self, path: str) -> str:
        """Who else says that the entity failed over, for people; empty: no other process."""

    def pinger_of(self, path: str) -> str:
        """Who pings the entity, for people; empty: it is not known."""


class NoFleet:
    """The fleet of a process that is alone."""

    def changed(self, path: str) -> None:
        return

    def pings(self, path: str) -> bool:
        return True

    def ping_ended(self, path: str, *, answered: bool, may_send: bool = True) -> None:
        return

    def said_of(self, path: str) -> str:
        return ""

    def pinger_of(self, path: str) -> str:
        return ""


class PingedElsewhere(Exception):
    """Another process pings the entity, so this one sends no ping now."""
