"""Outages for a block: of a namespace in memory, and of a real one behind a fault proxy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Final, Literal, Protocol, get_args

from twinbus.broker.faults import Fault

OutageKind = Literal["kill", "hang", "throttle", "refuse"]

FAULTS: Final[dict[str, tuple[Fault, ...]]] = {
    "hang": (Fault(kind="hang"),),
    "throttle": (Fault(kind="throttle"),),
    "refuse": (Fault(kind="refuse_attach"), Fault(kind="refuse_send")),
}


class Outage(Protocol):
    """The type of the fixture `outage`."""

    def __call__(
        self, kind: OutageKind | Fault, entity: str | None = None
    ) -> AbstractContextManager[None]:
        """Misbehave for a block, as `LocalNamespace.outage` does."""


class Breakable(Protocol):
    """A broker or a proxy that can be told to misbehave."""

    def cut_off(self) -> None: ...
    def serve_again(self) -> None: ...
    def add_fault(self, fault: Fault) -> int: ...
    def remove_fault(self, fault_id: int) -> bool: ...


@contextmanager
def misbehaving(
    target: Breakable, kind: OutageKind | Fault, entity: str | None = None
) -> Iterator[None]:
    """Have the target misbehave for the block; ValueError if the outage is none."""
    if kind == "kill":
        if entity is not None:
            raise ValueError("kill ends the whole namespace; use refuse for one entity")
        target.cut_off()
        try:
            yield
        finally:
            target.serve_again()
        return
    if isinstance(kind, Fault):
        if entity is not None:
            raise ValueError("name the entity in the fault: Fault(kind=..., entity=...)")
        faults: tuple[Fault, ...] = (kind,)
    elif kind in FAULTS:
        faults = tuple(replace(each, entity=entity) for each in FAULTS[kind])
    else:
        known = ", ".join(get_args(OutageKind))
        raise ValueError(f"an outage is {known}, or a Fault; got {kind!r}")
    numbers: list[int] = []
    try:
        numbers += map(target.add_fault, faults)
        yield
    finally:
        for number in numbers:
            target.remove_fault(number)
