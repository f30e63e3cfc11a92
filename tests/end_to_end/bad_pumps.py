"""Pumps that lose messages, for the drill to find out: named by `TWINBUS_DRILL_PUMP`.

Only one pump of a drill is bad, whichever is the first to create the file that `BAD_PUMP_FILE`
names; what it loses is written there, so that the test knows it from the culprit itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from twinbus.syphon.actions import Action, Forward
from twinbus.syphon.parcel import Parcel
from twinbus.syphon.pump import Pump

VARIABLE = "BAD_PUMP_FILE"


class DroppingPump(Pump):
    """Completes one message that it never sent."""

    def received(self, parcel: Parcel, now: float) -> list[Action]:
        actions = super().received(parcel, now)
        return completed_unsent(self, parcel, actions, now) if is_first() else actions


class HastyPump(Pump):
    """Completes before it sends, and its process is killed in between."""

    hasty = False

    def received(self, parcel: Parcel, now: float) -> list[Action]:
        actions = super().received(parcel, now)
        self.hasty = self.hasty or is_first()
        return completed_unsent(self, parcel, actions, now) if self.hasty else actions

    def settled(self, parcels: Iterable[Parcel], now: float) -> list[Action]:
        actions = super().settled(parcels, now)
        if self.hasty and not self.in_flight:
            os.kill(os.getpid(), signal.SIGKILL)
        return actions


def completed_unsent(pump: Pump, parcel: Parcel, actions: list[Action], now: float) -> list[Action]:
    """The pump's actions as if the primary had accepted a parcel that was never sent to it."""
    with open(os.environ[VARIABLE], "a", encoding="ascii") as file:
        file.write(f"{parcel.message_id}\n")
    kept = [a for a in actions if not (isinstance(a, Forward) and a.parcel is parcel)]
    return kept + pump.accepted([parcel], now)


def is_first() -> bool:
    """Whether this is the first call of all processes of the drill."""
    try:
        os.close(os.open(os.environ[VARIABLE], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
