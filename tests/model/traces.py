"""Recorded events as the TLA+ module Recorded, which spec/Trace.tla compares with the model.

A trace is about one entity. Each of its messages has a sender of its own in the model, so that
calls may overlap. In a simulation everything is known, so a trace has one actor, the world. A
ledger has one for each process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from tests.model.configurations import world
from tests.model.tlc import tla

Event = list[Any]
"""Its kind, and the arguments of the model's action (spec/Trace.tla)."""

Change = Callable[[list[list[Event]]], None]
"""Makes something else of the events of a trace."""

PRIMARY: Final = "primary"

OF_ATTEMPTS: Final = frozenset(
    {"begins", "stores", "may store", "answered", "unanswered", "refused", "failed", "arrives"}
)
OF_SYPHONS: Final = frozenset({"receives", "forwards", "completes", "expires"})

MOVES: Final = {"backlog_receive": "receives", "forward": "forwards", "complete": "completes"}
"""The syphon's operations in a ledger, and the actions of the model."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The events of each actor, in order."""

    name: str
    actors: Sequence[Sequence[Event]]

    def events(self) -> Iterator[Event]:
        for actor in self.actors:
            yield from actor

    def spoiled(self, name: str, change: Change) -> Trace:
        """The same trace after `change`, which gets a copy of the actors."""
        actors = deepcopy([list(actor) for actor in self.actors])
        change(actors)
        return Trace(f"{self.name}, {name}", actors)


def lane(app: str, number: int) -> tuple[str, int]:
    """The sender that stands for one message."""
    return app, number


def recorded(traces: Iterable[Trace]) -> str:
    """The text of the module Recorded."""
    traces = list(traces)
    lanes = {one for trace in traces for event in trace.events() for one in _lanes(event)}
    lines = ["---- MODULE Recorded ----", f"Lanes == {tla(lanes)}", "Traces == <<"]
    for number, trace in enumerate(traces):
        actors = [",\n  ".join(map(tla, actor)) for actor in trace.actors]
        events = ",\n ".join(f"<<{actor}>>" for actor in actors)
        comma = "," if number else ""
        lines.append(f"{comma}[name |-> {tla(trace.name)}, events |-> <<{events}>>]")
    return "\n".join([*lines, ">>", "====", ""])


def constants_of(traces: Iterable[Trace], **changes: Any) -> Mapping[str, object]:
    """The model's constants: whoever and whatever occurs in these traces."""
    apps, queues, syphons = {"a"}, {"q"}, {"y"}
    for trace in traces:
        for event in trace.events():
            kind = event[0]
            apps.update(app for app, _ in _lanes(event))
            if kind == "state":
                apps.add(event[1])
            if kind in ("begins", "arrives") and event[2] != PRIMARY:
                queues.add(event[2])
            if kind in OF_SYPHONS:
                syphons.add(event[1])
                queues.add(event[3])
            if kind == "act":
                syphons.update(syphon for syphon, _ in event[1])
                queues.update(queue for _, queue in event[1])
    return world(Apps=apps, Queues=queues, Syphons=syphons, **changes)


def _lanes(event: Event) -> Iterator[tuple[str, int]]:
    if event[0] in OF_ATTEMPTS:
        yield event[1]
    if event[0] in OF_SYPHONS:
        yield event[2]


def ledger_trace(
    name: str, records: Iterable[Mapping[str, Any]], entity: str, messages: frozenset[str]
) -> Trace:
    """What a ledger says of these messages of an entity, and of the entity's state.

    `records` are in the order of each process. Failures on the primary are kept for all messages,
    because they explain the states.
    """
    numbers: dict[str, int] = {}
    apps: dict[str, str] = {}
    actors: dict[str, list[Event]] = {}
    queues: dict[tuple[str, str], str] = {}
    """Where a syphon received each message: the record of a forward does not say it."""
    held_back: dict[str, Event] = {}
    """A change of state that was recorded before the attempt that caused it."""
    states: dict[str, str] = {}
    mine = [
        one
        for one in records
        # A broker's view has its own records of the same operations.
        if str(one.get("entity", "")).lower() == entity and one.get("view", "client") == "client"
    ]
    for one in mine:
        if one["operation"] in ("send", "divert") and one.get("message_id"):
            numbers.setdefault(one["message_id"], len(numbers) + 1)
            apps.setdefault(one["message_id"], one["process"])
    for one in mine:
        process, operation = one["process"], one["operation"]
        events = actors.setdefault(process, [])
        message = str(one.get("message_id"))
        chosen = message in messages
        if operation == "state":
            before = states.get(process, "healthy")
            state = states[process] = one["state"]
            event = ["state", process, state.replace(" ", "_").upper()]
            if (before, state) in (("healthy", "suspect"), ("suspect", "healthy")):
                held_back[process] = event
            else:
                events.append(event)
        elif operation in ("send", "divert"):
            place = PRIMARY if operation == "send" else one["backlog_queue"]
            is_ok = one["outcome"] == "ok"
            waits = held_back.get(process)
            explains = place == PRIMARY and (
                not is_ok or (waits is not None and waits[2] == "HEALTHY")
            )
            if chosen or explains:
                own = lane(process, numbers[message])
                events += _attempt(own, place, one["outcome"], chosen=chosen)
            if waits is not None and place == PRIMARY and is_ok == (waits[2] == "HEALTHY"):
                events.append(held_back.pop(process))
        elif chosen and one.get("cause") == "syphon":
            own = lane(apps[message], numbers[message])
            if operation == "backlog_receive":
                queues[process, message] = one["backlog_queue"]
            if one["outcome"] == "ok" and operation in MOVES:
                event = [MOVES[operation], process, own, queues[process, message]]
                events.append([*event, True] if operation == "forward" else event)
    return Trace(name, [actor for actor in actors.values() if actor])


def _attempt(own: Any, place: str, outcome: str, *, chosen: bool) -> list[Event]:
    begins = ["begins", own, place]
    if outcome == "ok":
        return [begins, ["stores", own], ["answered", own]]
    if outcome == "failed":
        return [begins, ["failed", own]]
    doubt: list[Event] = [["may store", own]] if chosen else []
    return [begins, *doubt, ["unanswered", own, False]]


def without_its_forward(actors: list[list[Event]]) -> None:
    """Spoil: the primary never accepted a message that is then completed in the backlog."""
    actor, index = _first(actors, "completes")
    forward = ["forwards", *actor[index][1:4]]
    actor[:index] = [event for event in actor[:index] if event[:4] != forward]


def without_first(kind: str) -> Change:
    """Spoil: the first event of a kind never happened."""

    def change(actors: list[list[Event]]) -> None:
        actor, index = _first(actors, kind)
        del actor[index]

    return change


def before_its_forward(actors: list[list[Event]]) -> None:
    """Spoil: a message is completed in the backlog, and then sent to the primary."""
    actor, index = _first(actors, "completes")
    sent = next(n for n in range(index, -1, -1) if actor[n][:3] == ["forwards", *actor[index][1:3]])
    actor.insert(sent, actor.pop(index))


def without_failures(actors: list[list[Event]]) -> None:
    """Spoil: what failed before the first change of state was answered instead."""
    actor, index = _first(actors, "state")
    for n in range(index):
        if actor[n][0] == "unanswered":
            actor[n] = ["refused", actor[n][1]]


def second_holder(actors: list[list[Event]]) -> None:
    """Spoil: a syphon acts on a lease while another one still does."""
    [actor] = actors
    for index, event in enumerate(actor):
        following = next((later for later in actor[index + 1 :] if later[1] - event[1]), None)
        if event[1] and following is not None:
            actor.insert(index + 1, ["act", event[1] | following[1]])
            return
    raise AssertionError("the lease never changed hands")


def sent_to_primary_while_failed_over(actors: list[list[Event]]) -> None:
    """Spoil: the first divert of a message goes to the primary instead."""
    for actor in actors:
        for event in actor:
            if event[0] == "begins" and event[2] != PRIMARY:
                event[2] = PRIMARY
                return
    raise AssertionError("nothing was diverted")


SPOILED: Final = {
    "an accept removed": without_its_forward,
    "a store removed": without_first("stores"),
    "a receive removed": without_first("receives"),
    "a completion before the send": before_its_forward,
    "a failover without a failure": without_failures,
    "a send to the primary while failed over": sent_to_primary_while_failed_over,
}
"""By name: what makes a trace one that the protocol forbids."""

SPOILED_LEDGERS: Final = tuple(name for name in SPOILED if name != "a failover without a failure")
"""Those for ledgers, which do not say of each failure whether it counts."""


def _first(actors: list[list[Event]], kind: str) -> tuple[list[Event], int]:
    for actor in actors:
        for index, event in enumerate(actor):
            if event[0] == kind:
                return actor, index
    raise AssertionError(f"no event {kind!r}")
