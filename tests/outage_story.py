"""A small ledger with an outage in it, written line by line, so that every figure is known.

Minute 0 to 10 and 25 to 30: one message a second to `orders`, one in ten to `payments` too.
Minute 10: the primary is gone. `orders` fails over after a minute, and raises 3 sends until then;
messages 660 to 1499 are diverted. Minute 25: a ping is answered. Minute 27: the syphon moves them,
but for those that the story has other plans for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from twinbus.ledger.record import encode

if TYPE_CHECKING:
    from pathlib import Path

BEGAN_S = 1_794_787_200
"""2026-11-16 00:00:00 UTC."""

ORDERS_SENT = 600 + 300
ORDERS_DIVERTED = 840
PAYMENTS_SENT = 60 + 30
RAISED = 3
PINGS = 14
LOST, DEAD_LETTERED, FORWARDED_TWICE, WAITING = "o-700", "o-701", "o-702", ("o-703", "o-704")
RECORDS = ORDERS_SENT + ORDERS_DIVERTED + PAYMENTS_SENT + RAISED + PINGS + 3

Line = tuple[float, str, dict[str, Any]]


def story() -> Iterator[Line]:
    """Each line of the ledger: seconds after the beginning, operation and fields."""
    for second in [*range(600), *range(1_500, 1_800)]:
        yield second, "send", _message("orders", f"o-{second}", 1_000)
        if second % 10 == 0:
            yield second, "send", _message("payments", f"p-{second}", 70_000)
    yield 600.0, "state", {"entity": "orders", "state": "suspect", "error": "ConnectionError"}
    for number in range(RAISED):
        failed = {**_message("orders", f"o-raised-{number}", 1_000), "outcome": "failed"}
        yield 601.0 + number, "send", failed
    yield 660.0, "state", {"entity": "orders", "state": "failed over", "error": "no success"}
    for second in range(660, 1_500):
        diverted = _message("orders", f"o-{second}", 1_100)
        yield second, "divert", {**diverted, "cause": "failover", "backlog_queue": BACKLOG}
    for minute in range(PINGS):
        yield (
            720.0 + 60 * minute,
            "ping",
            {"entity": "orders", "cause": "ping", "outcome": "failed"},
        )
    yield 1_500.0, "state", {"entity": "orders", "state": "healthy", "error": "ping answered"}
    yield from _moved()


BACKLOG = "contoso/x-servicebus-transfer/0"


def _moved() -> Iterator[Line]:
    """What the syphon does, at minute 27: lost is what it completes and never forwards."""
    for second in range(660, 1_500):
        name = f"o-{second}"
        if name in WAITING:
            continue
        fields = {**_message("orders", name, 1_000), "cause": "syphon", "backlog_queue": BACKLOG}
        yield 1_620.0, "backlog_receive", {**fields, "size_bytes": 1_100}
        if name == DEAD_LETTERED:
            yield 1_621.0, "dead_letter", {**fields, "size_bytes": None}
            continue
        for _ in range({LOST: 0, FORWARDED_TWICE: 2}.get(name, 1)):
            yield 1_621.0, "forward", fields
        yield 1_622.0, "complete", {**fields, "size_bytes": None}


def _message(entity: str, message_id: str, size_bytes: int) -> dict[str, Any]:
    return {
        "entity": entity,
        "message_id": message_id,
        "size_bytes": size_bytes,
        "cause": "application",
        "outcome": "ok",
    }


def write_story(directory: Path, *, torn: bool = True) -> Path:
    """The story as a ledger in a directory: two files, the last line of one cut off."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [
        encode("web-1", round((BEGAN_S + at_s) * 1000), operation, {"pair": "contoso", **fields})
        for at_s, operation, fields in story()
    ]
    middle = len(lines) // 2
    (directory / "web-1-000001.jsonl").write_bytes(b"".join(lines[:middle]))
    rest = b"".join(lines[middle:])
    (directory / "web-1-000002.jsonl").write_bytes(rest + (b'{"v":1,"at_ms":17' if torn else b""))
    return directory
