"""What a check observed, compared with what the reference answered; without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

Observed = Mapping[str, Any]
"""Plain JSON data: what the namespace answered, by the name of the question."""

_VARIABLE: Final = (
    (re.compile(r"\s*(For more information|To know more)[^.]*\.[^ ]*"), ""),
    (re.compile(r"(TrackingId|SystemTracker|Timestamp|Reference|Tracking)\s*:\s*[^,\s)']+"), ""),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\b(sb|amqps?|https?)://[^/\s'\",]+"), r"\1://HOST"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z?"), "TIME"),
    (re.compile(r"[\s,.]+(?=[\s,.])"), ""),
)
"""Parts of an answer that differ from run to run, and what stands for them."""

_SECRET: Final = re.compile(
    r"(?i)((?:SharedAccessKey|SharedAccessSignature|sig|skn)=|Bearer\s+|\beyJ)[^;&\s'\"]+"
)


class Likeness(StrEnum):
    """Whether the namespace did what the reference did."""

    SAME = "same"
    DIFFERENT = "different"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """The answer of one namespace to one check."""

    side: str
    check: str
    asks: str
    likeness: Likeness
    observed: Observed = field(default_factory=dict)
    expected: Observed = field(default_factory=dict)
    """The answer of the reference."""
    differs: tuple[str, ...] = ()
    """The questions with another answer."""
    why: str = ""
    """Why it was not checked."""
    frames: tuple[str, ...] = ()
    """The frames of a different answer, the oldest first."""


def differences(observed: Observed, expected: Observed) -> tuple[str, ...]:
    """The questions whose answers differ, in the order of the reference."""
    names = [*expected, *(name for name in observed if name not in expected)]
    return tuple(name for name in names if observed.get(name) != expected.get(name))


def settled_text(text: str, label: str) -> str:
    """A text without what differs from run to run: ids, times, hosts and scratch names."""
    text = " ".join(text.split()).replace(label, "SCRATCH")
    for pattern, stands in _VARIABLE:
        text = pattern.sub(stands, text)
    return text.strip(" ,.")


def without_secrets(value: Any, secrets: Iterable[str]) -> Any:
    """JSON data in which no text has a key, a signature or a token."""
    known = [secret for secret in secrets if secret]

    def clean(one: Any) -> Any:
        if isinstance(one, str):
            for secret in known:
                one = one.replace(secret, "***")
            return _SECRET.sub(r"\1***", one)
        if isinstance(one, Mapping):
            return {str(name): clean(inner) for name, inner in one.items()}
        if isinstance(one, list | tuple):
            return [clean(inner) for inner in one]
        return one

    return clean(value)
