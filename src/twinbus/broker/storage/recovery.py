"""The records of a store turned back into entities. Pure: the shell hands in the scans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from twinbus.broker.journal import EntityImage
from twinbus.broker.storage import records
from twinbus.broker.storage.records import Data

Scan = Callable[[int], Iterator[tuple[Data, Data]]]
"""All keys of one kind with their records, in order of key."""

Amended = dict[int, set[int]]
"""Entity id to the sequence numbers of its messages that have an amendment."""


def read_images(scan: Scan) -> tuple[list[EntityImage], Amended]:
    """Every entity with all it holds, in order of id, and which messages are amended."""
    images: dict[int, EntityImage] = {}
    for key, record in scan(records.ENTITY):
        entity_id = records.key_entity(key)
        images[entity_id] = EntityImage(entity_id, *records.unpack_entity(record))
    for key, record in scan(records.COUNTER):
        if image := images.get(records.key_entity(key)):
            image.last_sequence_number = records.unpack_number(record)
    amended = _read_messages(scan, images)
    for key, record in scan(records.SESSION):
        if image := images.get(records.key_entity(key)):
            session_id, state = records.unpack_session_state(record)
            image.session_states[session_id] = state
    for key, record in scan(records.DUPLICATE):
        if image := images.get(records.key_entity(key)):
            message_id, first_seen_ms = records.unpack_duplicate(record)
            image.message_ids[message_id] = first_seen_ms
    return list(images.values()), amended


def _read_messages(scan: Scan, images: dict[int, EntityImage]) -> Amended:
    amendments = {
        records.key_numbers(key): bytes(record) for key, record in scan(records.AMENDMENT)
    }
    for key, record in scan(records.MESSAGE):
        numbers = entity_id, sequence_number = records.key_numbers(key)
        image = images.get(entity_id)
        if image is None:
            continue
        message = records.unpack_message(sequence_number, record)
        if amendments and numbers in amendments:
            records.apply_amendment(message, amendments[numbers])
        image.messages.append(message)
    amended: Amended = defaultdict(set)
    for entity_id, sequence_number in amendments:
        amended[entity_id].add(sequence_number)
    return dict(amended)
