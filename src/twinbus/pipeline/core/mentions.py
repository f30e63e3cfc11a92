"""Where a text names one message, and texts and lines of a ledger without it. Pure.

Any text can be an id, also "1" or "queue". So an id counts where it stands as a word of its own:
no letter, digit or underscore is next to it, also not behind one hyphen or dot, which join the
parts of other ids, dates, host names and addresses. All other signs, quotes among them, end a
word. Where that is wrong, a text is cut that names another thing: nothing counts texts. The
opposite mistake would leave the id. A damaged line can have lost what was between its words, so an
id of some length counts everywhere in it.

The expressions mean the same to Python and to Java, for the tables are searched by Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from twinbus.ledger.record import ERROR_LENGTH_MAX, FIELDS, WRITER
from twinbus.pipeline.core.rules import AT_ONCE, BROKER_REASONS, BY_THE_BROKER

TELLING: Final = ("client", "sequence_number", "trace_id")
"""Fields of a record that identify its message in another system."""

TEXTS: Final = ("client", "error", "trace_id")
"""Fields of a record that can name another message than its own."""

PART_OF_ID_MIN: Final = 4
"""Characters of an id at the end of a text, which may be cut there, that count as the id."""

UNLIKELY_LENGTH_MIN: Final = 8
"""Characters of an id that hardly is in a damaged line by chance."""

_ESCAPE: Final = r"(?<=\\[bfnrt])|(?<=\\u[0-9a-f]{4})"
"""The end of an escape looks like a letter or a digit in front of the id."""

_BEFORE: Final = rf"(?:(?<![0-9A-Za-z_])(?<![0-9A-Za-z_][-.])|{_ESCAPE})"
_AFTER: Final = r"(?![0-9A-Za-z_])(?![-.][0-9A-Za-z_])"
_END: Final = "(?!.)"

_WORDS: Final = "|".join([*BROKER_REASONS, f"{AT_ONCE}{_END}"])
"""Beginnings of texts that reports understand: they name no message, whatever its id is."""

LEFT_OFF: Final = "…"
"""The end of a text that its writer has shortened."""

CUT_LENGTH_MIN: Final = ERROR_LENGTH_MAX
"""Characters of a record's text from which it may have been cut inside the id."""


class Mentions:
    """Finds one id in texts, in the forms that it can have there."""

    def __init__(self, message_id: str) -> None:
        told = [message_id, repr(message_id)[1:-1], quote(message_id, safe="")]
        told.append(json.dumps(message_id, ensure_ascii=False)[1:-1])
        # A text is written once more where it is part of a line.
        forms = dict.fromkeys([*told, *map(written_id, told)])
        parts = dict.fromkeys(
            form[:size]
            for form in forms
            for size in range(len(form) - 1, min(PART_OF_ID_MIN, len(form)) - 1, -1)
        )
        self.message_id: Final = message_id
        self.forms: Final = tuple(forms)
        self.beginnings: Final = tuple({form[:PART_OF_ID_MIN] for form in forms})
        """Every text that names the message has one of these."""
        whole = f"{_BEFORE}(?:{_any_of(forms)}){_AFTER}"
        part = f"{_BEFORE}(?:{_any_of(parts)}){LEFT_OFF}?{_END}" if parts else "(?!)"
        self.up_to_it: Final = rf"(?s)^((?:{_WORDS})?+.*?){whole}.*"
        """Matches a text that names the message; its first group is what comes before."""
        self.up_to_part: Final = rf"(?s)^((?:{_WORDS})?+.*?){part}"
        """The same of a text that ends inside the id."""
        self.part_in_line: Final = part.removesuffix(_END) + rf"(?:\\u2026)?(?:\"|{_END})"
        """Matches a line of the ledger with a text, or the line itself, that ends inside it."""
        damaged = f"{whole}|{part}"
        if len(message_id) >= UNLIKELY_LENGTH_MIN:
            damaged = f"{_any_of(forms)}|(?:{_any_of(parts)}){_END}"
        self._in_damaged = re.compile(damaged, re.DOTALL)
        self._up_to = re.compile(self.up_to_it), re.compile(self.up_to_part)

    def are_in(self, text: str) -> bool:
        """Return whether what is no record names the message, or ends inside its id."""
        found = any(one in text for one in self.beginnings)
        return found and self._in_damaged.search(text) is not None

    def renamed(self, text: str, new_id: str) -> str:
        """Return what is no record with another name in place of the id."""
        return self._in_damaged.sub(new_id, text) if self.are_in(text) else text

    def cut(self, text: str) -> str:
        """Return what a record's text says before it names the message."""
        up_to_it, up_to_part = self._up_to
        if found := up_to_it.match(text):
            return found[1].rstrip(" ")
        can_be_cut = len(text) >= CUT_LENGTH_MIN or text.endswith(LEFT_OFF)
        if can_be_cut and (found := up_to_part.match(text)):
            return found[1].rstrip(" ")
        return text


def renamed_line(line: bytes, mentions: Mentions, new_id: str) -> bytes:
    """Return a line of the ledger without the id."""
    if not any(one.encode() in line for one in mentions.beginnings):
        return line
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        # A damaged line stays damaged: it still counts as rejected.
        text = line.decode("utf-8", "surrogateescape")
        return mentions.renamed(text, new_id).encode("utf-8", "surrogateescape")
    if record.get("operation") == WRITER:
        return line
    if record.get("message_id") == mentions.message_id:
        told = _own_record(record, new_id)
    else:
        told = dict(_other_record(record, mentions))
    return line if told == record else json.dumps(told, separators=(",", ":")).encode()


def _own_record(record: Mapping[str, Any], new_id: str) -> dict[str, Any]:
    told = {name: value for name, value in record.items() if name not in (*TELLING, "error")}
    if found := re.match(BY_THE_BROKER, str(record.get("error", ""))):
        told["error"] = found[1]
    return {**told, "message_id": new_id}


def _other_record(record: Mapping[str, Any], mentions: Mentions) -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if name in TEXTS and isinstance(value, str):
            if text := mentions.cut(value):
                yield name, text
        elif name in FIELDS or not mentions.are_in(json.dumps({name: value})):
            # Otherwise of a later version, or foreign.
            yield name, value


def written_id(message_id: str) -> str:
    """Return an id as it is in a line: the ledger's files are ASCII."""
    return json.dumps(message_id)[1:-1]


def _any_of(texts: dict[str, None]) -> str:
    return "|".join(map(re.escape, texts))
