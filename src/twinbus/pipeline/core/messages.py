"""Messages of a ledger in memory: the facts of records, summed by message, and judged. Pure.

`tables.journeys` does the same in columns, by the same rules (`rules`).

    RecordShapes       what a record says, looked up by its words: a ledger has few different ones
    MessageFolder      sums up records of some ids, and judges their messages one id at a time
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from twinbus.pipeline.core import rules
from twinbus.pipeline.core.calculus import PLAIN
from twinbus.pipeline.core.rules import (
    BESIDE_FATES,
    DEAD_LETTER_QUEUE,
    DELETED,
    DELIVERED_FATE,
    FACTS,
    FIRST_TIMES,
    LAST_TIMES,
    LEFT,
    RAN_OUT,
    SECOND_COPY,
    SUMS,
)

MEMO_MAX: Final = 50_000
"""Different shapes and judgements that are remembered: a ledger of foreign lines can have any."""

_TIMES: Final = {**LAST_TIMES, **FIRST_TIMES}
_BITS: Final = (*FACTS, *_TIMES)
"""What is known of a message if any record says it: its facts, and which times it has."""

BIT_OF: Final = {name: 1 << place for place, name in enumerate(_BITS)}
_SUM_NAMES: Final = tuple(SUMS)
SUM_SHIFT: Final = len(_BITS)
_ACCEPTED: Final = BIT_OF["accepted_ms"]
_WORDS: Final = frozenset({"duplicate", DELETED, LEFT, SECOND_COPY})
"""The states that a rule asks for."""

SUMMED: Final = frozenset({"accepted", "received", DELIVERED_FATE, *BESIDE_FATES})
"""The counts of all messages. Fates but delivered are counted of named messages, as they are after
the broker told what it knows."""

MESSAGE_OPERATIONS: Final = frozenset({"send", "divert", "forward", "receive", "backlog_receive"})

# Places in the row of a message: bits, the sums, and times.
_ROW_SUMS: Final = 1
_ROW_ACCEPTED: Final = _ROW_SUMS + len(SUMS)
_ROW_FIRST: Final = _ROW_ACCEPTED + 1
_ROW_LAST: Final = _ROW_FIRST + 1

Row = list[Any]


class RecordShape(NamedTuple):
    """What all records of the same words say, whatever their message and their time."""

    packed: int
    """Bits of the message, and above them those of the sums that the record adds 1 to."""
    label: str
    destination: str
    receiver: str
    """The subscription of a receipt, else ""."""
    is_broker: bool
    is_accepted: bool
    """A client's send or divert was acknowledged."""
    is_about_message: bool
    """It is an operation that moves a message, and no poll."""
    deleted: str
    """Path of an entity that the broker deleted, else ""."""


class RecordShapes:
    """Shapes by the words of records."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], RecordShape] = {}

    def of(self, record: Mapping[str, Any]) -> RecordShape:
        get = record.get
        state, error = get("state"), get("error")
        key = (
            record["operation"],
            *(get("outcome"), get("view"), get("cause")),
            *(get("pair"), get("namespace"), get("side"), get("entity"), get("backlog_queue")),
            state if state in _WORDS else None,
            error is not None and error.startswith(RAN_OUT),
        )
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MEMO_MAX:
                self._known.clear()
            found = self._known[key] = _shape_of(record)
        return found


def _shape_of(record: Mapping[str, Any]) -> RecordShape:
    def text(name: str, left_out: str = "") -> str:
        value = record.get(name)
        return left_out if value is None else value

    operation, entity, queue = record["operation"], record.get("entity"), text("backlog_queue")
    view, outcome = text("view", "client"), text("outcome", "ok")
    label = rules.label_of(
        PLAIN,
        pair=record.get("pair"),
        backlog_queue=record.get("backlog_queue"),
        entity=entity,
        side=text("side"),
        namespace=record.get("namespace"),
    )
    path = text("entity").lower()
    destination = rules.destination_of(PLAIN, entity) or ""
    facts = rules.record_facts(
        PLAIN,
        rules.RecordTraits(
            operation=operation,
            outcome=outcome,
            view=view,
            cause=text("cause"),
            state=text("state"),
            error=text("error"),
            is_twin=None not in (entity, record.get("backlog_queue")) and queue.lower() == path,
            label=label,
        ),
    )
    is_deletion = view != "client" and operation == "manage" and text("state") == DELETED
    return RecordShape(
        packed=_packed(facts),
        label=label,
        destination=destination,
        receiver=path if facts["received"] and "/" in path and path != destination else "",
        is_broker=view == "broker",
        is_accepted=bool(facts["tried"] and outcome == "ok"),
        is_about_message=operation in MESSAGE_OPERATIONS
        and not (operation == "backlog_receive" and text("cause") == "poll"),
        deleted=path if is_deletion else "",
    )


def _packed(facts: Mapping[str, bool]) -> int:
    packed = sum(BIT_OF[name] for name in FACTS if facts[name])
    for name, (of, but) in _TIMES.items():
        if any(facts[one] for one in of) and not (but is not None and facts[but]):
            packed |= BIT_OF[name]
    for place, of in enumerate(SUMS.values()):
        assert sum(facts[one] for one in of) <= 1, "a record adds at most 1 to a sum"
        if any(facts[one] for one in of):
            packed |= 1 << (SUM_SHIFT + place)
    return packed


class Judged(NamedTuple):
    """What became of a message, without its name."""

    m: Any
    """Everything that rules read of it."""
    counts: tuple[str, ...]
    """The sums (`rules.counts_of`) in which it counts."""
    is_missing: bool
    is_duplicate: bool
    is_known_by_clients: bool


class FoundMessage(NamedTuple):
    """A message that was judged."""

    label: str
    destination: str
    message_id: str
    judged: Judged
    fate: str | None
    accepted_ms: int | None
    first_ms: int
    last_ms: int
    times: int
    """Receipts at the entity that received it most often."""
    repeated_at: str | None

    @property
    def is_in_backlog(self) -> bool:
        """Whether the broker recorded it in a backlog queue: it is no message of a sender."""
        return bool(rules.is_in_backlog(PLAIN, self.destination))


class MessageFolder:
    """Sums up the records of some ids, and judges their messages."""

    def __init__(self, deleted_ms: Mapping[str, int]) -> None:
        """`deleted_ms` are the entities that a broker deleted, with the last time of each."""
        self._deleted_ms = deleted_ms
        self._rows: dict[str, dict[tuple[str, str, str], Row]] = {}
        self._steps: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._judged: dict[tuple[int, ...], Judged] = {}

    def add(
        self, packed: int, label: str, destination: str, receiver: str, at_ms: int, message_id: str
    ) -> None:
        """Add one record (`RecordShape`)."""
        bits, sums = self._steps_of(packed)
        of_id = self._rows.setdefault(message_id, {})
        row = of_id.get((label, destination, receiver))
        if row is None:
            row = of_id[label, destination, receiver] = [
                *(bits, *(0 for _ in SUMS)),
                *(at_ms if bits & _ACCEPTED else None, at_ms, at_ms),
            ]
        else:
            row[0] |= bits
            if bits & _ACCEPTED:
                accepted_ms = row[_ROW_ACCEPTED]
                if accepted_ms is None or at_ms < accepted_ms:
                    row[_ROW_ACCEPTED] = at_ms
            if at_ms < row[_ROW_FIRST]:
                row[_ROW_FIRST] = at_ms
            elif at_ms > row[_ROW_LAST]:
                row[_ROW_LAST] = at_ms
        for place in sums:
            row[place] += 1

    def _steps_of(self, packed: int) -> tuple[int, tuple[int, ...]]:
        found = self._steps.get(packed)
        if found is None:
            sums = tuple(
                _ROW_SUMS + place for place in range(len(SUMS)) if packed >> (SUM_SHIFT + place) & 1
            )
            found = self._steps[packed] = packed & ((1 << SUM_SHIFT) - 1), sums
        return found

    def take(self) -> Iterator[list[FoundMessage]]:
        """Yield the messages of each id with their fates, and forget them."""
        while self._rows:
            message_id, rows = self._rows.popitem()
            yield self._after_broker([*self._messages(message_id, rows)])

    def _messages(
        self, message_id: str, rows: dict[tuple[str, str, str], Row]
    ) -> Iterator[FoundMessage]:
        of_message: dict[tuple[str, str], list[tuple[str, Row]]] = defaultdict(list)
        for (label, destination, receiver), row in with_labels(rows):
            of_message[label, destination].append((receiver, row))
        for (label, destination), parts in of_message.items():
            yield self._folded(label, destination, message_id, parts)

    def _folded(
        self, label: str, destination: str, message_id: str, parts: Sequence[tuple[str, Row]]
    ) -> FoundMessage:
        """Return one message with the facts of all its receivers."""
        receipts = [(row[_ROW_RECEIPTS], receiver or destination) for receiver, row in parts]
        row = parts[0][1] if len(parts) == 1 else _merged([row for _, row in parts])
        repeats = sum(max(times - 1, 0) for times, _ in receipts)
        receivers = sum(times > 0 for times, _ in receipts)
        times, entity = max(receipts)
        judged = self._judgement(row, repeats, receivers)
        return FoundMessage(
            label=label,
            destination=destination,
            message_id=message_id,
            judged=judged,
            fate=judged.m.fate,
            accepted_ms=row[_ROW_ACCEPTED],
            first_ms=row[_ROW_FIRST],
            last_ms=row[_ROW_LAST],
            times=times,
            repeated_at=entity if times > 1 else None,
        )

    def _judgement(self, row: Row, repeats: int, receivers: int) -> Judged:
        key = (*row[:_ROW_ACCEPTED], repeats, receivers)
        found = self._judged.get(key)
        if found is None:
            if len(self._judged) >= MEMO_MAX:
                self._judged.clear()
            found = self._judged[key] = judgement(
                bits=row[0],
                sums=row[_ROW_SUMS:_ROW_ACCEPTED],
                repeats=repeats,
                receivers=receivers,
            )
        return found

    def _after_broker(self, messages: list[FoundMessage]) -> list[FoundMessage]:
        """Return the messages of an id with the fates that the broker's records tell."""
        in_backlog = [one for one in messages if one.is_in_backlog]
        if not in_backlog:
            return messages
        sharers = Counter(
            one.label
            for one in messages
            if not one.is_in_backlog and rules.is_open(PLAIN, one.fate)
        )
        of_label = {
            label: self._in_queues([one for one in in_backlog if one.label == label])
            for label in {one.label for one in in_backlog}
        }
        found = []
        for one in messages:
            queues = None if one.is_in_backlog else of_label.get(one.label)
            if queues is not None:
                fate = rules.after_broker(
                    PLAIN,
                    one.fate,
                    rules.broker_fate(PLAIN, queues),
                    sharers=sharers[one.label],
                    held_copies=queues.held_copies,
                    standing=queues.standing,
                )
                found.append(one._replace(fate=fate))
            else:
                found.append(one)
        return found

    def _in_queues(self, held: Sequence[FoundMessage]) -> SimpleNamespace:
        """Return what `rules.broker_fate` asks of the rows of one id and pair."""
        queues = SimpleNamespace(
            standing=0, swept=0, held_copies=0,
            expired=False, dead_lettered=False, completed=False, taken_out=False,
        )  # fmt: skip
        for one in held:
            m = one.judged.m
            open_copies = max(m.broker_copies - m.broker_ended, 0)
            deleted_ms = self._deleted_ms.get(one.destination)
            # A message stored after the queue was created again has a later record.
            is_swept = deleted_ms is not None and one.last_ms <= deleted_ms
            is_letter = one.destination.endswith(DEAD_LETTER_QUEUE)
            queues.standing += 0 if is_swept else open_copies
            queues.swept += open_copies if is_swept else 0
            queues.held_copies += m.broker_copies
            queues.expired |= m.broker_expired
            queues.dead_lettered |= m.broker_dead_lettered
            queues.completed |= m.broker_completed and not is_letter
            queues.taken_out |= m.broker_completed and is_letter
        return queues


_ROW_RECEIPTS: Final = _ROW_SUMS + _SUM_NAMES.index("receipts")


def judgement(*, bits: int, sums: Sequence[int], repeats: int, receivers: int) -> Judged:
    """Return what became of a message with these facts and sums."""
    m = SimpleNamespace(
        **{name: bool(bits & BIT_OF[name]) for name in FACTS},
        # Rules ask only whether a message has a time.
        **{name: 0 if bits & BIT_OF[name] else None for name in _TIMES},
        **dict(zip(_SUM_NAMES, sums, strict=True)),
        repeats=repeats,
        receivers=receivers,
    )
    vars(m).update(rules.message_facts(PLAIN, m))
    counts = rules.counts_of(PLAIN, m)
    return Judged(
        m=m,
        counts=tuple(name for name, holds in counts.items() if holds and name in SUMMED),
        is_missing=bool(rules.is_missing(PLAIN, m)),
        is_duplicate=bool(rules.is_duplicate(m)),
        is_known_by_clients=bool(rules.is_known_by_clients(PLAIN, m)),
    )


def with_labels(
    rows: Mapping[tuple[str, str, str], Row],
) -> Iterator[tuple[tuple[str, str, str], Row]]:
    """Yield the rows of an id, those with an unsure label with that of the sure ones.

    As `tables.records.joined`: the sure rows of a destination are those of which a client named
    the pair; if there is none, all that have a label. If they have several, an unsure row keeps its
    own.
    """
    if len(rows) == 1:
        yield from rows.items()
        return
    sure, named = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for (label, destination, _), row in rows.items():
        if row[0] & BIT_OF["labelled"]:
            sure[destination].add(label)
        if label:
            named[destination].add(label)
    for (label, destination, receiver), row in rows.items():
        labels = sure[destination] or named[destination]
        is_unsure = label not in labels and len(labels) == 1
        yield (min(labels) if is_unsure else label, destination, receiver), row


def _merged(rows: Sequence[Row]) -> Row:
    first, *others = rows
    merged = [*first]
    for row in others:
        merged[0] |= row[0]
        for place in range(_ROW_SUMS, _ROW_ACCEPTED):
            merged[place] += row[place]
        times = [one for one in (merged[_ROW_ACCEPTED], row[_ROW_ACCEPTED]) if one is not None]
        merged[_ROW_ACCEPTED] = min(times, default=None)
        merged[_ROW_FIRST] = min(merged[_ROW_FIRST], row[_ROW_FIRST])
        merged[_ROW_LAST] = max(merged[_ROW_LAST], row[_ROW_LAST])
    return merged
