"""The verbs of a syphon on the control socket of its host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from twinbus.control.protocol import Verb


class SteeredSyphon(Protocol):
    """What these verbs need of a syphon."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    @property
    def in_flight(self) -> int: ...


def steering_verbs(syphon: SteeredSyphon) -> Mapping[str, Verb]:
    """Return the verbs that pause and resume a syphon, by name."""

    def pause() -> dict[str, Any]:
        syphon.pause()
        return {"paused": True, "in_flight": syphon.in_flight}

    def resume() -> dict[str, Any]:
        syphon.resume()
        return {"paused": False, "in_flight": syphon.in_flight}

    return {"pause": Verb(pause), "resume": Verb(resume)}
