"""The records of a small ledger in memory: summed by kind, and their messages with their fates.

`tables.records` and `tables.journeys` do the same in columns, by the same rules (`rules`). For some
ten thousand records Spark takes seconds to plan that, and seconds more without compiled code.

    tallied      records -> one row for each kind and bucket of time
    Journeys     records -> a row of facts for each message and receiver; and each message judged
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

from twinbus.cost.arithmetic import UNIT_BYTES
from twinbus.pipeline.core import rules
from twinbus.pipeline.core.calculus import PLAIN
from twinbus.pipeline.core.messages import BIT_OF, SUM_SHIFT, RecordShapes, with_labels
from twinbus.pipeline.core.rules import FACTS, FIRST_TIMES, LAST_TIMES, SUMS

Record = Mapping[str, Any]
Row = list[Any]
"""Bits as those of a `RecordShape`, the sums, and the times of `_LAST` and `_FIRST`."""

_LAST: Final = ("size_bytes", "last_ms", *LAST_TIMES)
_FIRST: Final = ("first_ms", *FIRST_TIMES, "begun_ms")
_SUM_PLACES: Final = range(1, 1 + len(SUMS))
_LAST_PLACES: Final = range(_SUM_PLACES.stop, _SUM_PLACES.stop + len(_LAST))
_FIRST_PLACES: Final = range(_LAST_PLACES.stop, _LAST_PLACES.stop + len(_FIRST))
_RECEIPTS: Final = _SUM_PLACES[[*SUMS].index("receipts")]

_TALLY: Final = (
    *("at_ms", *rules.KIND, "message_id", "process", "error", "state"),
    *("records", "units", "bytes", "unrecorded"),
)
_BY_THE_BROKER: Final = re.compile(rules.BY_THE_BROKER)


def tallied(records: Iterable[Record], *, bucket_s: int) -> list[dict[str, Any]]:
    """Sum up records by kind and bucket of time, as `tables.records.tallied`."""
    step_ms = bucket_s * 1000
    sums = defaultdict[tuple[Any, ...], list[int]](lambda: [0, 0, 0, 0])
    for record in records:
        size_bytes = record.get("size_bytes") or 0
        of_kind = sums[record["at_ms"] // step_ms * step_ms, *_kind_of(record)]
        of_kind[0] += 1
        of_kind[1] += max(-(-size_bytes // UNIT_BYTES), 1)
        of_kind[2] += size_bytes
        of_kind[3] += record.get("unrecorded") or 0
    return [dict(zip(_TALLY, (*key, *counts), strict=True)) for key, counts in sums.items()]


def _kind_of(record: Record) -> tuple[Any, ...]:
    get, operation = record.get, record["operation"]
    reason = None
    if operation == "dead_letter":
        found = _BY_THE_BROKER.match(get("error") or "")
        reason = found[1] if found else ""
    return (
        *map(get, rules.KIND),
        # Only whether the record has one.
        None if get("message_id") is None else "",
        record["process"] if operation in {"divert", "ping"} else None,
        reason,
        get("state") if operation == "receive" else None,
    )


class Journeys:
    """The facts of records, summed by message and receiver."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._rows: dict[str, dict[tuple[str, str, str], Row]] = defaultdict(dict)
        """By id; then by label, destination and receiver."""
        shapes, row_of = RecordShapes(), dict[int, Callable[[int, int, int], Row]]()
        for record in records:
            if record.get("message_id") is None or record.get("entity") is None:
                continue
            shape, at_ms = shapes.of(record), record["at_ms"]
            if shape.packed not in row_of:
                row_of[shape.packed] = _row_of(shape.packed)
            took_ms = (record.get("latency_us") or 0) // 1000
            begun_ms = at_ms - max(0, min(took_ms, rules.ANSWER_MAX_MS))
            row = row_of[shape.packed](at_ms, record.get("size_bytes") or 0, begun_ms)
            rows = self._rows[record["message_id"]]
            key = shape.label, shape.destination, shape.receiver
            known = rows.get(key)
            rows[key] = row if known is None else _merged(known, row)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of `tables.schemas.JOURNEYS`."""
        for message_id, rows in self._rows.items():
            for (label, destination, receiver), row in rows.items():
                yield {
                    "primary_label": label,
                    "destination": destination,
                    "message_id": message_id,
                    "receiver": receiver,
                    **_named(row),
                }

    def judged(self) -> Iterator[dict[str, Any]]:
        """Yield each message with its fate, as `tables.schemas.FATES` with more columns."""
        for message_id, rows in self._rows.items():
            of_message: dict[tuple[str, str], list[tuple[str, Row]]] = defaultdict(list)
            for (label, destination, receiver), row in with_labels(rows):
                of_message[label, destination].append((receiver, row))
            for (label, destination), parts in of_message.items():
                yield {
                    "primary_label": label,
                    "destination": destination,
                    "message_id": message_id,
                    **_judged(destination, parts),
                }


def _row_of(packed: int) -> Callable[[int, int, int], Row]:
    """Return what makes a row of a record of this shape, of its time, its size and its begin."""
    bits = packed & ((1 << SUM_SHIFT) - 1)
    sums = [packed >> (SUM_SHIFT + place) & 1 for place in range(len(SUMS))]
    last, first = ([bool(bits & BIT_OF[name]) for name in of] for of in (LAST_TIMES, FIRST_TIMES))
    is_tried = bits & BIT_OF["tried"]

    def row(at_ms: int, size_bytes: int, begun_ms: int) -> Row:
        return [
            *(bits, *sums, size_bytes, at_ms),
            *(at_ms if has else None for has in last),
            at_ms,
            *(at_ms if has else None for has in first),
            begun_ms if is_tried else None,
        ]

    return row


def _merged(one: Row, other: Row) -> Row:
    merged = [one[0] | other[0]]
    merged += [one[place] + other[place] for place in _SUM_PLACES]
    for pick, places in ((max, _LAST_PLACES), (min, _FIRST_PLACES)):
        for place in places:
            left, right = one[place], other[place]
            known = left if right is None else right
            merged.append(known if left is None or right is None else pick(left, right))
    return merged


def _named(row: Row) -> dict[str, Any]:
    return {
        **{name: bool(row[0] & BIT_OF[name]) for name in FACTS},
        **dict(zip((*SUMS, *_LAST, *_FIRST), row[1:], strict=True)),
    }


def _judged(destination: str, parts: Sequence[tuple[str, Row]]) -> dict[str, Any]:
    """Return one message with the facts of all its receivers."""
    receipts = [(row[_RECEIPTS], receiver or destination) for receiver, row in parts]
    row = parts[0][1]
    for _, other in parts[1:]:
        row = _merged(row, other)
    times, entity = max(receipts)
    found = {
        **_named(row),
        "repeats": sum(max(number - 1, 0) for number, _ in receipts),
        "receivers": sum(number > 0 for number, _ in receipts),
        "times": times,
        "repeated_at": entity if times > 1 else None,
    }
    return {**found, **rules.message_facts(PLAIN, SimpleNamespace(**found))}
