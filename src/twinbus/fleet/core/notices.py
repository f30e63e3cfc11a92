"""A notice: what one host or process says about one entity, and its form as bytes.

    data = encode([Notice(entity="orders", host=host_id, since=..., kinds=("timeout 3",), epoch=1)])
    for notice in decode(data): ...

Files of a host and messages of the notice board have the same form. Notices are foreign input:
anyone who can write there may write anything. `decode` returns what is valid and leaves the rest
out; it raises nothing. No decision depends on a time in a notice, because any clock may be wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from twinbus.servicebus.names import DATE_MAX_MS, is_entity_name

VERSION: Final = 1
"""Increment when old readers would misread new notices. A new field does not count."""

NOTICES_MAX: Final = 500
"""Notices in one file or message. A process with more entities that failed over says nothing of
the rest: those that fail over there do so by their own interval."""

KINDS_MAX: Final = 5
KIND_LENGTH_MAX: Final = 40
"""Kinds of failures of one notice, and characters of one. They are for people."""

DATA_BYTES_MAX: Final = 512 * 1_024
"""More than `NOTICES_MAX` of the longest notices take."""

SINCE_MAX_S: Final = DATE_MAX_MS / 1_000
EPOCH_MAX: Final = 2**53 - 1
"""The largest integer that every reader of JSON keeps."""

_HOST: Final = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Notice:
    """An entity that failed over on a host by its own interval, or that answered a ping."""

    entity: str
    """The path as the sender wrote it; `entity_key` is what is compared."""
    host: str
    """The random id of the host that says so: 16 hex digits."""
    since: float
    """Seconds since 1970 by the writer's clock. For people only."""
    kinds: tuple[str, ...]
    """Kinds of failures with their counts, such as "timeout 3". For people only."""
    epoch: int
    """Milliseconds from the boot of that host to the failover or the recovery; a later notice
    replaces an earlier one."""
    recovered: bool = False
    """The entity answered a ping: a recovery instead of a failover."""

    @property
    def entity_key(self) -> str:
        return self.entity.lower()


def is_host_id(text: object) -> bool:
    """Whether a value is the id of a host."""
    return isinstance(text, str) and _HOST.fullmatch(text) is not None


def encode(notices: Iterable[Notice]) -> bytes:
    """Return notices as bytes: the first `NOTICES_MAX` that `decode` would accept."""
    documents: list[dict[str, object]] = []
    for notice in notices:
        document = _document(notice)
        if len(documents) < NOTICES_MAX and _read(document) is not None:
            documents.append(document)
    whole = {"v": VERSION, "notices": documents}
    return json.dumps(whole, separators=(",", ":")).encode("ascii")


def decode(data: bytes) -> list[Notice]:
    """Return the valid notices in foreign bytes, at most `NOTICES_MAX`; raise nothing."""
    if len(data) > DATA_BYTES_MAX:
        return []
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        return []
    if not isinstance(whole, dict) or whole.get("v") != VERSION:
        return []
    documents = whole.get("notices")
    if not isinstance(documents, list):
        return []
    found = (_read(document) for document in documents[:NOTICES_MAX])
    return [notice for notice in found if notice is not None]


def _document(notice: Notice) -> dict[str, object]:
    kinds = ("".join(c for c in kind if _is_plain(c)) for kind in notice.kinds)
    return {
        "entity": notice.entity,
        "host": notice.host,
        "since": notice.since,
        "kinds": [kind[:KIND_LENGTH_MAX] for kind in kinds if kind][:KINDS_MAX],
        "epoch": notice.epoch,
        "recovered": notice.recovered,
    }


def _read(document: Any) -> Notice | None:
    """Return the notice in a decoded JSON value; None if any part is not as it must be."""
    if not isinstance(document, dict):
        return None
    entity, host = document.get("entity"), document.get("host")
    since, epoch = document.get("since"), document.get("epoch")
    kinds, recovered = document.get("kinds"), document.get("recovered", False)
    if not isinstance(entity, str) or not is_entity_name(entity) or not is_host_id(host):
        return None
    # A bool is an int, and "since": true is no time.
    if isinstance(since, bool) or not isinstance(since, int | float):
        return None
    if not 0 <= since <= SINCE_MAX_S:
        return None
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch <= EPOCH_MAX:
        return None
    if not isinstance(recovered, bool) or not isinstance(kinds, list) or len(kinds) > KINDS_MAX:
        return None
    if not all(isinstance(kind, str) and _is_kind(kind) for kind in kinds):
        return None
    return Notice(entity, str(host), float(since), tuple(kinds), epoch, recovered)


def _is_kind(kind: str) -> bool:
    """Whether a text is short and plain: it is printed on terminals."""
    return 0 < len(kind) <= KIND_LENGTH_MAX and all(map(_is_plain, kind))


def _is_plain(character: str) -> bool:
    return character.isascii() and character.isprintable()
