"""The verbs of a pair and of a syphon on the control socket of their host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from twinbus.control.protocol import ControlRefused, Verb
from twinbus.status.document import PairStatus, SyphonQueueStatus

KNOWN_SHOWN_MAX = 10
"""Paths to list in an error."""

ADAPTIVE = "adaptive"
"""The rate of a syphon that only the primary's answers limit."""


class SteeredPair(Protocol):
    """What `pair_verbs` needs of a pair."""

    def status(self) -> PairStatus: ...
    def freeze(self, path: str) -> None: ...
    def unfreeze(self, path: str) -> None: ...
    def force_failover(self, path: str) -> None: ...
    def mark_healthy(self, path: str) -> None: ...


def pair_verbs(pair: SteeredPair) -> Mapping[str, Verb]:
    """Return the verbs of a pair by name."""

    def steered(act: Callable[[str], None]) -> Verb:
        def run(path: str) -> dict[str, Any]:
            try:
                known = known_path(pair.status().entities, path)
            except ValueError as error:
                raise ControlRefused("unknown-path", str(error)) from None
            act(known)
            return asdict(pair.status().entities[known])

        return Verb(run, takes=("path",))

    return {
        "status": Verb(lambda: pair.status().as_dict()),
        "freeze": steered(pair.freeze),
        "unfreeze": steered(pair.unfreeze),
        "force-failover": steered(pair.force_failover),
        "mark-healthy": steered(pair.mark_healthy),
    }


class SteeredSyphon(Protocol):
    """What `steering_verbs` needs of a syphon."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def limit_rate(self, most_per_s: float | None) -> None: ...
    def status(self) -> Mapping[str, SyphonQueueStatus]: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def is_paused(self) -> bool: ...


def steering_verbs(syphon: SteeredSyphon) -> Mapping[str, Verb]:
    """Return the verbs that pause, resume, slow down and observe a syphon, by name.

    `progress` costs nothing: unlike the status of a syphon it counts no messages in a namespace.
    """

    def pause() -> dict[str, Any]:
        syphon.pause()
        return {"paused": True, "in_flight": syphon.in_flight}

    def resume() -> dict[str, Any]:
        syphon.resume()
        return {"paused": False, "in_flight": syphon.in_flight}

    def rate(most_per_s: str) -> dict[str, Any]:
        try:
            syphon.limit_rate(None if most_per_s == ADAPTIVE else float(most_per_s))
        except ValueError as error:
            raise ControlRefused(
                "bad-rate", f"a rate is a number of messages a second, or {ADAPTIVE}: {error}"
            ) from None
        return {"rate": most_per_s}

    def progress() -> dict[str, Any]:
        queues = {path: asdict(queue) for path, queue in syphon.status().items()}
        return {"paused": syphon.is_paused, "queues": queues}

    return {
        "pause": Verb(pause),
        "resume": Verb(resume),
        "rate": Verb(rate, takes=("most_per_s",)),
        "progress": Verb(progress),
    }


def known_path(entities: Iterable[str], path: str) -> str:
    """Return the path of an entity as the pair spells it; ValueError: it has no sender for it."""
    wanted = path.strip().strip("/").lower()
    paths = sorted(entities)
    for known in paths:
        if known.lower() == wanted:
            return known
    listed = ", ".join(paths[:KNOWN_SHOWN_MAX]) or "none"
    more = len(paths) - KNOWN_SHOWN_MAX
    raise ValueError(
        f"this pair has no sender for {path!r}; it has {listed}"
        + (f" and {more:,} more" if more > 0 else "")
    )
