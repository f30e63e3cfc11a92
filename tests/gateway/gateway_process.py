"""`twinbus gateway` in a process of its own, to be killed and restarted."""

from __future__ import annotations

from pathlib import Path

from tests.processes import ServedBroker

TIMES = ("--failover-interval", "1s", "--ping-interval", "1s", "--attempt-timeout", "1s")


class GatewayProcess(ServedBroker):
    """A gateway in front of two namespaces; the port stays the same over restarts."""

    def __init__(
        self, directory: Path, primary: str, secondary: str, options: tuple[str, ...] = ()
    ) -> None:
        super().__init__(directory, "gate", options=(*TIMES, "--queues", "2", *options))
        self._sides = ["--primary", primary, "--secondary", secondary]

    def command(self, places: list[str]) -> list[str]:
        return ["gateway", *places, *self._sides]
