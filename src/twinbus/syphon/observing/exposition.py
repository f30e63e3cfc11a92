"""The metrics of a syphon program in Prometheus' text format. Pure.

A series that a pair's collector has too (`twinbus.pairing.observing.metrics`) has the same name and
the same labels here. The text is written by hand, so that a syphon needs no library for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from twinbus.syphon.observing.depth import MeasuredQueue
from twinbus.syphon.observing.health import QueueStates

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

OUTCOMES: Final = ("forwarded", "completed", "dead_lettered")

FAMILIES: Final = {
    "twinbus_syphon_messages_total": (
        "counter", "Messages of the backlog by what this syphon did with them",
    ),
    "twinbus_syphon_in_flight": ("gauge", "Messages received from the backlog and not settled"),
    "twinbus_syphon_paused": ("gauge", "1 while an operator has paused the syphon"),
    "twinbus_syphon_blocked": (
        "gauge", "1 while a queue is not served, by primary, secondary, lease or pump",
    ),
    "twinbus_syphon_held_destinations": (
        "gauge", "Entities of the primary that do not accept messages of a queue now",
    ),
    "twinbus_syphon_healthy": ("gauge", "0 while /health asks for a restart"),
    "twinbus_backlog_messages": (
        "gauge", "Messages in a backlog queue: waiting, or dead-lettered there",
    ),
    "twinbus_backlog_oldest_seconds": (
        "gauge", "Age of the oldest message that waits in a backlog queue",
    ),
    "twinbus_ledger_unrecorded_total": ("counter", "Lines the ledger could not take"),
}  # fmt: skip
"""By name: kind and text."""

Sample = tuple[str, float, dict[str, str]]
"""Name of a series, its value, and its labels besides the pair."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SyphonFigures:
    """What the metrics of one syphon are made of."""

    pair: str
    queues: QueueStates
    is_paused: bool
    is_healthy: bool
    unrecorded: int
    depths: Mapping[str, MeasuredQueue]
    """The last measurement; empty: none, or it is out of date."""
    unix_s: float


def exposition(figures: SyphonFigures) -> str:
    """Return the answer to `/metrics`."""
    by_name: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for name, value, labels in _samples(figures):
        words = ",".join(
            f'{label}="{_escaped(text)}"'
            for label, text in {"pair": figures.pair, **labels}.items()
        )
        by_name[name].append(f"{name}{{{words}}} {value:.15g}\n")
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} {kind}\n" + "".join(by_name[name])
        for name, (kind, text) in FAMILIES.items()
    )


def _samples(figures: SyphonFigures) -> Iterator[Sample]:
    yield "twinbus_syphon_paused", figures.is_paused, {}
    yield "twinbus_syphon_healthy", figures.is_healthy, {}
    yield "twinbus_ledger_unrecorded_total", figures.unrecorded, {}
    for queue, state in figures.queues.items():
        yield from _queue_samples(queue, state)
    for queue, depth in figures.depths.items():
        of = {"queue": queue}
        yield "twinbus_backlog_messages", depth.waiting, {**of, "kind": "waiting"}
        yield "twinbus_backlog_messages", depth.dead_lettered, {**of, "kind": "dead-lettered"}
        age_s = 0.0 if depth.oldest_unix_s is None else figures.unix_s - depth.oldest_unix_s
        yield "twinbus_backlog_oldest_seconds", max(0.0, age_s), of


def _queue_samples(queue: str, state: Mapping[str, Any]) -> Iterator[Sample]:
    of = {"queue": queue}
    for outcome in OUTCOMES:
        yield "twinbus_syphon_messages_total", state[outcome], {**of, "outcome": outcome}
    yield "twinbus_syphon_in_flight", state["in_flight"], of
    yield "twinbus_syphon_held_destinations", len(state["held"]), of
    for by in state["problems"]:
        yield "twinbus_syphon_blocked", 1, {**of, "by": by}


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
