"""The relay in figures: rate by queues and by size, memory by length of backlog, CPU by part.

No ratio against a peer, so it is printed and kept beside the ratios, not among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.relay_world import KILOBYTE, Moved, Mover, RelayWorld, relay_world, scaled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.harness import Progress

QUEUES = (1, 2, 10)
QUEUE_MESSAGES = 60_000
SIZES = ((100, 60_000), (KILOBYTE, 60_000), (64 * KILOBYTE, 4_000), (250 * KILOBYTE, 1_000))
"""Bytes of a body, and how many messages of that size are moved."""
BACKLOGS = (10_000, 100_000, 1_000_000)


def tables(progress: Progress) -> str:
    """Measure all of them; the tables as a person reads them."""
    with relay_world() as world:
        with Mover() as mover:
            progress("warming up")
            world.move(mover, scaled(QUEUE_MESSAGES))
            by_queues = {}
            for count in QUEUES:
                progress(f"{count} queues")
                by_queues[count] = world.move(mover, scaled(QUEUE_MESSAGES), queues=count)
            by_size = {}
            for size, messages in SIZES:
                progress(f"messages of {size} bytes")
                by_size[size] = world.move(mover, scaled(messages), body_bytes=size)
        by_length = {}
        for length in BACKLOGS:
            progress(f"a backlog of {scaled(length):,} messages")
            by_length[scaled(length)] = _in_a_fresh_process(world, scaled(length))
    return "\n\n".join(
        (
            _rates_by_queues(by_queues),
            _rates_by_size(by_size),
            _memory(by_length),
            _cpu(by_queues[1]),
        )
    )


def _in_a_fresh_process(world: RelayWorld, messages: int) -> Moved:
    """One whose memory nothing has grown before."""
    with Mover() as mover:
        return world.move(mover, messages, watch_memory=True)


def _rates_by_queues(found: dict[int, Moved]) -> str:
    rows = [(str(count), f"{moved.rate:,.0f}") for count, moved in found.items()]
    return _table("relay: rate by number of backlog queues, 1 KB", ("queues", "messages/s"), rows)


def _rates_by_size(found: dict[int, Moved]) -> str:
    rows = [
        (_bytes(size), f"{moved.rate:,.0f}", f"{moved.rate * size / 1e6:,.1f}")
        for size, moved in found.items()
    ]
    return _table("relay: rate by size of the body, 1 queue", ("body", "messages/s", "MB/s"), rows)


def _memory(found: dict[int, Moved]) -> str:
    rows = [
        (f"{length:,}", f"{moved.anonymous_kb / 1024:,.1f}", f"{moved.rate:,.0f}")
        for length, moved in found.items()
    ]
    head = ("backlog", "anonymous MB", "messages/s")
    return _table("relay: most anonymous memory by length of the backlog, 1 KB", head, rows)


def _cpu(moved: Moved) -> str:
    """CPU of a message by part; what is most is where the next win is."""
    parts = {
        "relay": moved.relay_cpu_s,
        "primary": moved.primary_cpu_s,
        "secondary": moved.secondary_cpu_s,
    }
    rows = [(part, f"{seconds / moved.messages * 1e6:,.1f}") for part, seconds in parts.items()]
    largest = max(parts, key=lambda part: parts[part])
    share = parts[largest] / sum(parts.values())
    text = _table("relay: CPU by part, 1 KB, 1 queue", ("part", "us/message"), rows)
    return f"{text}\nmost is spent in the {largest} ({share:.0%}): the next win is there"


def _bytes(size: int) -> str:
    return f"{size // KILOBYTE} KB" if size >= KILOBYTE else f"{size} B"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
    return "\n".join([title, *text])
