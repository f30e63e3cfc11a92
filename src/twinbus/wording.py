"""Foreign text, counts, durations and sizes in the words that people read. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

NAMED_MAX: Final = 5
"""Names to list in one line; a table has them all."""

NOT_KNOWN: Final = "–"
"""Stands for a number that is not known, which is not 0."""

REASON_LENGTH_MAX: Final = 160
"""An error of the service can be a page; its beginning is enough."""

_SERVICE_MARKS: Final = re.compile(
    r"(?i)[\s,;]*\b(?:tracking_?id|systemtracker|timestamp|reference|clientrequestid)[:=]"
    r"\s*[^\s,;)\]]+|\$cbs:\s*|\s*(?:for more information|to know more)[^\n]*?aka\.ms/\S+"
)

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def visible(text: object) -> str:
    """Return foreign text as one line without control characters, which could steer a terminal."""
    line = " ".join(str(text).split())
    return "".join(char if char.isprintable() else "�" for char in line)


def plain(text: object) -> str:
    """Return an error's text as one line, without the marks that the service puts on each answer.

    They are for Microsoft's support, are never the same twice and hide what the sentence says.
    """
    return visible(_SERVICE_MARKS.sub("", str(text)))


def short(text: object) -> str:
    """Return the beginning of an error's text, as `plain`."""
    whole = plain(text).rstrip(" .")
    return whole if len(whole) <= REASON_LENGTH_MAX else whole[: REASON_LENGTH_MAX - 1] + "…"


def named(names: Sequence[str], most: int = NAMED_MAX) -> str:
    more = len(names) - most
    shown = ", ".join(visible(name) for name in names[:most])
    return shown + (f" and {more:,} more" if more > 0 else "")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """Return a time span in its two largest units."""
    whole = int(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def ago(seconds: float) -> str:
    """Return how long ago something was, so coarse that the text does not change every second."""
    if seconds < _MINUTE_S:
        return "less than 1 min ago"
    return f"{duration(seconds // _MINUTE_S * _MINUTE_S).removesuffix(' 0 s')} ago"


def size(count_bytes: int) -> str:
    amount = float(count_bytes)
    for unit in ("B", "KB", "MB"):
        if amount < 1_024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_024
    return f"{amount:.1f} GB"
