"""Pumps that lose messages, for the drill to find out.

    python -m tests.end_to_end.bad_pumps PUMP drill ...     # `twinbus drill` with this pump

Only one pump of a drill is bad, whichever is the first to create the file that `BAD_PUMP_FILE`
names; what it loses is written there, so that the test knows it from the culprit itself.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from unittest.mock import patch

from twinbus.pipeline.drain.task import DrainTask
from twinbus.syphon import host
from twinbus.syphon.core.actions import Action, Complete, Forward, Release
from twinbus.syphon.core.pump import Pump
from twinbus.transfer.unpacking import BacklogMessage

VARIABLE = "BAD_PUMP_FILE"


@dataclass(frozen=True, kw_only=True)
class PumpedTask(DrainTask):
    """A task of a Spark drain with other pumps; it plants them in the process that it runs in."""

    pump: Callable[..., Pump]

    def drain(self, queues: Sequence[str]) -> None:
        with pumped_by(self.pump):
            super().drain(queues)


def pumped_by(pump: Callable[..., Pump]) -> AbstractContextManager[Any]:
    """Let the hosts of this process use another pump."""
    return patch.object(host, "Pump", pump)


def spark_pumped_by(pump: Callable[..., Pump]) -> AbstractContextManager[Any]:
    """Let the tasks of Spark drains use another pump."""
    return patch("twinbus.pipeline.drain.drain.DrainTask", partial(PumpedTask, pump=pump))


class DroppingPump(Pump):
    """Completes one message that it never sent."""

    def received(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        actions = super().received(messages, now)
        return completed_unsent(self, messages[:1], actions, now) if is_first() else actions


class HastyPump(Pump):
    """Completes before it sends, and its process is killed in between."""

    hasty = False

    def received(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        actions = super().received(messages, now)
        self.hasty = self.hasty or is_first()
        return completed_unsent(self, messages, actions, now) if self.hasty else actions

    def settled(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        actions = super().settled(messages, now)
        if self.hasty and not self.in_flight:
            os.kill(os.getpid(), signal.SIGKILL)
        return actions


def completed_unsent(
    pump: Pump, messages: list[BacklogMessage], actions: list[Action], now: float
) -> list[Action]:
    """The pump's actions as if the primary had accepted messages that were never sent to it."""
    if VARIABLE in os.environ:
        with open(os.environ[VARIABLE], "a", encoding="ascii") as file:
            file.writelines(f"{message.message_id}\n" for message in messages)
    kept = [a for a in actions if not (isinstance(a, Forward) and a.message in messages)]
    return kept + pump.accepted(messages, now)


def is_first() -> bool:
    """Whether this is the first call of all processes of the drill."""
    try:
        os.close(os.open(os.environ[VARIABLE], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class PlantedPump(Pump):
    """Loses one message and forwards three others twice, all of them known by their ids.

    Those that are to come twice are given back when the primary has taken them, as if the process
    had died before it completed them.
    """

    DROPPED: ClassVar[str] = "planted-dropped"
    TWICE: ClassVar[frozenset[str]] = frozenset(f"planted-twice-{n}" for n in range(3))

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._given_back: set[str] = set()

    def received(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        actions = super().received(messages, now)
        dropped = [message for message in messages if message.message_id == self.DROPPED]
        return completed_unsent(self, dropped, actions, now) if dropped else actions

    def accepted(self, messages: list[BacklogMessage], now: float) -> list[Action]:
        twice = [p for p in messages if p.message_id in self.TWICE - self._given_back]
        self._given_back.update(str(message.message_id) for message in twice)
        actions = super().accepted(messages, now)
        return [kept for action in actions for kept in self._without(action, twice)]

    @staticmethod
    def _without(action: Action, twice: list[BacklogMessage]) -> Iterator[Action]:
        if not isinstance(action, Complete):
            yield action
            return
        yield Complete([message for message in action.messages if message not in twice])
        for message in (one for one in action.messages if one in twice):
            message.outcome = Release(message)
            yield message.outcome


if __name__ == "__main__":
    from tests.end_to_end import bad_pumps
    from twinbus.console.entry import main

    # By its import name: a task that is pickled here is unpickled in another process.
    with bad_pumps.spark_pumped_by(getattr(bad_pumps, sys.argv.pop(1))):
        main()
