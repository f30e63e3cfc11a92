"""What the ledger costs a paired send: its share of the client's processor time (SPEC 8: < 3 %).

One process, one loop, one broker; two pairs, one with a ledger and one without, send the same
1 KB messages one at a time. A round is made of short turns of the one and the other, in an order
that cancels drift (on, off, off, on); a turn with the ledger ends when all is written, its thread's
time included. The "ratio" is the share: what a send with the ledger takes more, over all it takes.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from azure.servicebus import ServiceBusMessage

from bench.harness import Progress, Sides
from bench.paired_send_vs_sdk import BODY
from bench.paired_sides import DATA, BothSides, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ROUNDS", "UNIT", "sides"]

ROUNDS: Final = 21
UNIT: Final = "us of client CPU per message: the ledger's, and all"
MESSAGES: Final = 150
"""Of one turn: a twentieth of a second."""

TURNS: Final = ("on", "off", "off", "on") * 5
"""Of one round, of which the medians count: a turn that something else disturbed does not."""


@dataclass
class Share:
    """The two figures of a round, of which the first one asked for takes the measurement."""

    on: BothSides
    off: BothSides
    ledger_us: float | None = None
    whole_us: float | None = None

    def ledger(self) -> float:
        if self.ledger_us is None:
            self._measure()
        figure, self.ledger_us = self.ledger_us, None
        assert figure is not None
        return figure

    def whole(self) -> float:
        if self.whole_us is None:
            self._measure()
        figure, self.whole_us = self.whole_us, None
        assert figure is not None
        return figure

    def _measure(self) -> None:
        spent_us: dict[str, list[float]] = {"on": [], "off": []}
        for turn in TURNS:
            side = self.on if turn == "on" else self.off
            spent_us[turn].append(1e6 / side.ours(make, MESSAGES))
        self.whole_us = statistics.median(spent_us["on"])
        self.ledger_us = self.whole_us - statistics.median(spent_us["off"])


@contextlib.contextmanager
def sides(progress: Progress) -> Iterator[Sides]:
    """A pair with a ledger and one without, to one queue of one broker."""
    DATA.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="ledger-", dir=DATA) as directory,
        serving(progress, Path(directory)) as (primary, secondary),
        contextlib.ExitStack() as stack,
    ):
        both = []
        for place in (Path(directory) / "ledger", None):
            side = BothSides(primary, secondary, place)
            side.open()
            stack.callback(side.close)
            both.append(side)
        share = Share(both[0], both[1])
        words = f"paired sends of {len(BODY)} bytes, one at a time, ledger on against off"
        yield Sides(ours=share.ledger, peer=share.whole, note=words)


def make() -> list[ServiceBusMessage]:
    """One turn's messages: new ones, for the SDK leaves its marks on those it has sent."""
    return [
        ServiceBusMessage(BODY, message_id=f"message-{number:08d}") for number in range(MESSAGES)
    ]
