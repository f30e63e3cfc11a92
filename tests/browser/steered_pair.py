"""The control socket of one pair with a syphon, whose names have markup in them. No broker."""

from __future__ import annotations

import asyncio
import sys

from tests.unit.status.statuses import QUEUE, entity, status
from twinbus.control.protocol import Verb, steering_verbs
from twinbus.control.server import ControlServer
from twinbus.status.document import SyphonQueueStatus

MARKUP = "<img src=x onerror=\"document.title='run'\">"
NAME = "contoso"
ENTITY = f"orders{MARKUP}"


class SteeredSyphon:
    """A syphon that moves nothing."""

    def __init__(self) -> None:
        self.is_paused = False
        self.in_flight = 0
        self.limit = ""

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def limit_rate(self, most_per_s: float | None) -> None:
        self.limit = "" if most_per_s is None else f"at most {most_per_s:,.0f}/s: the rate is set"

    def status(self) -> dict[str, SyphonQueueStatus]:
        return {QUEUE: SyphonQueueStatus(completed=3, paused=self.is_paused, limit=self.limit)}


async def main() -> None:
    syphon = SteeredSyphon()
    shown = entity(ENTITY, "failed over", since_s=5.0, reason=MARKUP, last_error=MARKUP)
    verbs = {
        "status": Verb(lambda: status(shown, syphon=syphon.status()).as_dict()),
        **steering_verbs(syphon),
    }
    await ControlServer("pair", NAME, verbs).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
