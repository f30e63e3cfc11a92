"""Fault injection: which operations of the broker fail, how, how often and for how long.

Pure: the shell asks `decide` before each operation and performs what the returned fault says.

    kind                 stage    what the shell then does
    refuse_attach        attach   refuses the link with the condition
    refuse_send          send     rejects the message with the condition
    throttle             send     rejects the message as server-busy; with `per_s` what exceeds it
    drop_before_commit   send     cuts the connection; the message is not stored
    drop_after_commit    send     stores the message and cuts the connection unacknowledged
    delay                any      waits `delay_ms`, then goes on
    hang                 any      never answers

A fault proxy (docs/broker.md) sees frames. It has two kinds more, and can select by link, direction
and frame:

    detach               open     detaches links with the condition: open ones at once, later ones
                                  with their first message
    half_open            any      leaves the connection open; nothing passes any more
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from twinbus.broker.refusals import ArgumentInvalid, ArgumentOutOfRange
from twinbus.servicebus import conditions

Stage = Literal["attach", "send", "receive", "connect", "request", "open"]
"""What is about to happen. Of a proxy, `request` is a message to a node and `open` a link that is
open when the fault is added."""

FaultKind = Literal[
    "refuse_attach",
    "refuse_send",
    "throttle",
    "delay",
    "hang",
    "drop_before_commit",
    "drop_after_commit",
    "detach",
    "half_open",
]

Direction = Literal["to_service", "to_client"]

FrameName = Literal["attach", "flow", "transfer", "disposition", "detach"]

PROXY_KINDS: frozenset[FaultKind] = frozenset(("detach", "half_open"))
FRAME_KINDS: frozenset[FaultKind] = frozenset(
    ("delay", "hang", "drop_before_commit", "detach", "half_open")
)
"""Kinds that can strike any frame; the others answer a message or an attach."""

_EVERY_STAGE: frozenset[Stage] = frozenset(("connect", "attach", "send", "receive", "request"))
_SEND: frozenset[Stage] = frozenset(("send",))

STAGES_BY_KIND: dict[FaultKind, frozenset[Stage]] = {
    "refuse_attach": frozenset(("attach",)),
    "refuse_send": _SEND,
    "throttle": _SEND,
    "delay": _EVERY_STAGE,
    "hang": _EVERY_STAGE,
    "drop_before_commit": _SEND,
    "drop_after_commit": _SEND,
    "detach": frozenset(("send", "receive", "request", "open")),
    "half_open": frozenset(("attach", "send", "receive", "request", "open")),
}

DELAY_MS_MAX = 3_600_000
"""One hour; for more, use `hang`."""

FAULTS_MAX = 1000
"""Every operation walks the list, so it must stay short."""

DEFAULT_CONDITION = conditions.INTERNAL_ERROR
"""A failure that clients read as the service being unable to answer."""

THROTTLE_CONDITION = conditions.SERVER_BUSY


@dataclass(frozen=True, slots=True)
class FrameAt:
    """Where a proxy is when it asks: the frame that it holds, or a link that is open."""

    link: str = ""
    direction: Direction | None = None
    """None: there is no frame yet, or the link is open both ways."""
    frame: FrameName | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault; unless `count` or `until_ms` bounds it, it stays until removed."""

    kind: FaultKind
    entity: str | None = None
    """Path of an entity, `prefix/*` for all paths below one, None for the whole namespace."""
    condition: str = ""
    """AMQP error condition of a refusal; empty: the kind's default."""
    description: str = ""
    count: int | None = None
    until_ms: int | None = None
    delay_ms: int = 0
    probability: float = 1.0
    per_s: float | None = None
    """Sends a second that a throttle lets pass, from a bucket that holds one second's worth."""
    link: str | None = None
    """Of a proxy: name of a link, or `prefix*`."""
    direction: Direction | None = None
    """Of a proxy: only frames that go this way."""
    frame: FrameName | None = None
    """Of a proxy: the frame that the fault strikes, in place of the stages of its kind."""

    def __post_init__(self) -> None:
        if self.kind not in STAGES_BY_KIND:
            known = ", ".join(STAGES_BY_KIND)
            raise ArgumentInvalid(f"fault kind {self.kind!r} is unknown; use one of {known}")
        if self.count is not None and self.count < 1:
            raise ArgumentOutOfRange(f"count of a fault is 1 or more, not {self.count}")
        if not 0.0 < self.probability <= 1.0:
            raise ArgumentOutOfRange(
                f"probability of a fault is above 0 and at most 1, not {self.probability}"
            )
        least_ms = 1 if self.kind == "delay" else 0
        if not least_ms <= self.delay_ms <= DELAY_MS_MAX:
            raise ArgumentOutOfRange(
                f"delay_ms of a {self.kind} fault is {least_ms}..{DELAY_MS_MAX}, "
                f"not {self.delay_ms}"
            )
        if self.per_s is not None and (self.kind != "throttle" or not self.per_s >= 1):
            raise ArgumentOutOfRange(
                f"per_s is 1 or more, and of a throttle fault only; got {self.per_s} of {self.kind}"
            )
        self._check_selectors()
        default = THROTTLE_CONDITION if self.kind == "throttle" else DEFAULT_CONDITION
        # A frozen dataclass fills its own defaults this way; they depend on the kind.
        object.__setattr__(self, "condition", self.condition or default)
        object.__setattr__(
            self,
            "description",
            self.description or f"a fault was injected: {self.kind}",
        )

    def _check_selectors(self) -> None:
        if self.direction not in (None, *get_args(Direction)):
            known = " or ".join(get_args(Direction))
            raise ArgumentInvalid(f"direction of a fault is {known}, not {self.direction!r}")
        if self.frame is None:
            return
        if self.frame not in get_args(FrameName):
            known = ", ".join(get_args(FrameName))
            raise ArgumentInvalid(f"frame of a fault is one of {known}, not {self.frame!r}")
        if self.kind not in FRAME_KINDS:
            known = ", ".join(sorted(FRAME_KINDS))
            raise ArgumentInvalid(
                f"a {self.kind} fault strikes no chosen frame; leave out frame, or use {known}"
            )

    @property
    def needs_proxy(self) -> bool:
        """Whether only a fault proxy can perform it."""
        selectors = (self.link, self.direction, self.frame)
        return self.kind in PROXY_KINDS or any(one is not None for one in selectors)

    def applies_to(self, stage: Stage | None, path: str, at: FrameAt | None = None) -> bool:
        """Whether it strikes here; `stage` is None for a frame that is at no stage."""
        if self.frame is not None:
            if at is None or at.frame != self.frame:
                return False
        elif stage not in STAGES_BY_KIND[self.kind]:
            return False
        if at is not None and not self._selects(stage, at):
            return False
        if self.entity is None:
            return True
        entity, path = self.entity.lower(), path.lower()
        if entity.endswith("/*"):
            return path.startswith(entity[:-1])
        return path == entity

    def _selects(self, stage: Stage | None, at: FrameAt) -> bool:
        if self.direction not in (None, at.direction) and stage != "open":
            return False
        if self.link is None:
            return True
        if self.link.endswith("*"):
            return at.link.startswith(self.link[:-1])
        return at.link == self.link


class FaultPlan:
    """The active faults, in order of addition; the first that applies is used."""

    def __init__(self, draw: Callable[[], float], *, proxy: bool = False) -> None:
        """`draw` returns numbers in [0, 1); the shell seeds it, so that a run can be repeated.

        `proxy`: the shell relays frames, and so can perform what a broker cannot.
        """
        self._proxy = proxy
        self._draw = draw
        self._faults: dict[int, Fault] = {}
        self._last_id = 0
        self._buckets: dict[int, tuple[float, int]] = {}
        """Of throttles with a rate: sends that may pass, and when that was so, in milliseconds."""

    def __bool__(self) -> bool:
        """False while no fault is active: a cheap check for busy paths."""
        return bool(self._faults)

    def add(self, fault: Fault) -> int:
        if fault.needs_proxy and not self._proxy:
            raise ArgumentInvalid(
                "only `twinbus faults proxy` has detach, half_open, link, direction and frame;"
                f" this broker cannot perform a {fault.kind} fault with them"
            )
        if len(self._faults) >= FAULTS_MAX:
            raise ArgumentOutOfRange(f"{FAULTS_MAX} faults are in force already; remove some first")
        self._last_id += 1
        self._faults[self._last_id] = fault
        return self._last_id

    def remove(self, fault_id: int) -> bool:
        """Remove one fault; False if it is gone already."""
        self._buckets.pop(fault_id, None)
        return self._faults.pop(fault_id, None) is not None

    def clear(self) -> None:
        self._buckets.clear()
        self._faults.clear()

    def list(self, now_ms: int) -> dict[int, Fault]:
        """The active faults by id, each with its remaining count."""
        self._forget_expired(now_ms)
        return dict(self._faults)

    def decide(
        self, stage: Stage | None, path: str, now_ms: int, at: FrameAt | None = None
    ) -> Fault | None:
        """The fault for this operation, or None; it lowers the fault's count."""
        if not self._faults:
            return None
        self._forget_expired(now_ms)
        for fault_id, fault in self._faults.items():
            if fault.applies_to(stage, path, at) and self._strikes(fault_id, fault, now_ms):
                self._use_up(fault_id, fault)
                return fault
        return None

    def _strikes(self, fault_id: int, fault: Fault, now_ms: int) -> bool:
        if fault.per_s is not None:
            room, since_ms = self._buckets.get(fault_id, (fault.per_s, now_ms))
            room = min(fault.per_s, room + fault.per_s * max(0, now_ms - since_ms) / 1000)
            passes = room >= 1
            self._buckets[fault_id] = (room - 1 if passes else room, now_ms)
            if passes:
                return False
        return fault.probability >= 1.0 or self._draw() < fault.probability

    def _use_up(self, fault_id: int, fault: Fault) -> None:
        if fault.count is None:
            return
        if fault.count == 1:
            self.remove(fault_id)
        else:
            self._faults[fault_id] = replace(fault, count=fault.count - 1)

    def _forget_expired(self, now_ms: int) -> None:
        expired = [
            fault_id
            for fault_id, fault in self._faults.items()
            if fault.until_ms is not None and fault.until_ms <= now_ms
        ]
        for fault_id in expired:
            self.remove(fault_id)


def fault_from_json(document: object, now_ms: int) -> Fault:
    """The fault that a JSON object describes; `for_ms` in it counts from now."""
    if not isinstance(document, dict):
        raise ArgumentInvalid(
            'a fault is a JSON object such as {"kind": "hang", "entity": "orders", "for_ms": 60000}'
        )
    if unknown := sorted(str(key) for key in document if key not in _KINDS):
        raise ArgumentInvalid(
            f"a fault has no {', '.join(unknown)}; known: {', '.join(sorted(_KINDS))}"
        )
    given: dict[str, Any] = {key: value for key, value in document.items() if value is not None}
    for key, value in given.items():
        kind, name = _KINDS[key]
        # JSON's true is an int in Python.
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ArgumentInvalid(f"{key} of a fault is a {name}, not {value!r}")
        if name == "number":
            given[key] = float(value)
    for_ms = given.pop("for_ms", None)
    if for_ms is not None:
        if for_ms < 1:
            raise ArgumentOutOfRange(f"for_ms of a fault is 1 or more, not {for_ms}")
        given["until_ms"] = now_ms + for_ms
    # The fault itself refuses an unknown kind.
    return Fault(**{"kind": "", **given})


_TEXT, _WHOLE, _NUMBER = (str, "string"), (int, "whole number"), (int | float, "number")
_KINDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(
        ("kind", "entity", "condition", "description", "link", "direction", "frame"), _TEXT
    ),
    **dict.fromkeys(("count", "until_ms", "for_ms", "delay_ms"), _WHOLE),
    **dict.fromkeys(("probability", "per_s"), _NUMBER),
}
"""What each key of a fault's JSON object holds."""


def fault_to_json(fault_id: int, fault: Fault) -> dict[str, object]:
    return {"id": fault_id, **asdict(fault)}
