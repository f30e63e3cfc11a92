"""Reads a status that another process sent as JSON. Pure.

A reader leaves out fields that it does not know; those that an earlier release lacks have their
defaults. Every other value must have the type of its field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import Any, Final, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from twinbus.errors import ControlError
from twinbus.status.document import VERSION, HostStatus, PairStatus, SyphonStatus

NUMBER_MAX: Final = 1e15
"""Larger ones are no counts, sizes or times; infinity and NaN are not JSON."""

Document = TypeVar("Document")
Reader = Callable[[Any], Any]


class StatusUnreadable(ControlError, ValueError):
    """A document is no status that this release can read; the text says what does not fit."""

    def __init__(self, why: str) -> None:
        super().__init__(f"its status cannot be read ({why}); use the same release of Twinbus")


class _Misfit(Exception):
    """A value does not have the type of its field."""


def read_status(document: object) -> HostStatus:
    """Return the status of a pair or a syphon; StatusUnreadable if the document is neither."""
    is_pair = isinstance(document, dict) and "entities" in document
    status: HostStatus
    status = read(PairStatus, document) if is_pair else read(SyphonStatus, document)
    if status.version > VERSION:
        raise StatusUnreadable(f"it has version {status.version}, this release reads {VERSION}")
    return status


def read(kind: type[Document], document: object) -> Document:
    """Return the document as a dataclass of this kind; StatusUnreadable if it does not fit."""
    try:
        made: Document = _reader(cast("Any", kind))(document)
    except _Misfit as error:
        raise StatusUnreadable(str(error)) from None
    return made


@cache
def _reader(kind: Any) -> Reader:
    """Return the function that reads a value of this type."""
    origin, inside = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _typed(dict, _record(kind), "object")
    if origin is dict:
        value = _reader(inside[1])
        return _typed(
            dict, lambda found: {name: value(one) for name, one in found.items()}, "object"
        )
    if origin is list:
        item = _reader(inside[0])
        return _typed(list, lambda found: [item(one) for one in found], "list")
    if origin is tuple:
        return _typed(list, _row([*map(_reader, inside)]), "list")
    if NoneType in inside:
        known = _reader(inside[0])
        return lambda found: None if found is None else known(found)
    if origin is Literal or issubclass(kind, StrEnum):
        return _word({str(word): word for word in inside or kind})
    if kind in (int, float):
        return _number((int, float) if kind is float else (int,))
    return _typed(kind, lambda found: found, kind.__name__)


def _typed(kind: type, make: Reader, name: str) -> Reader:
    def read(found: Any) -> Any:
        if type(found) is not kind:
            raise _Misfit(f"{found!r:.60} is no {name}")
        return make(found)

    return read


def _record(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = {one.name: _reader(hints[one.name]) for one in fields(kind)}
    required = {
        one.name
        for one in fields(kind)
        if one.default is MISSING and one.default_factory is MISSING
    }

    def make(found: dict[str, Any]) -> Any:
        values, name = {}, ""
        try:
            for name, one in found.items():
                if (reader := readers.get(name)) is not None:
                    values[name] = reader(one)
        except _Misfit as error:
            raise _Misfit(f"{name}: {error}") from None
        if missing := required - values.keys():
            raise _Misfit(f"{', '.join(sorted(missing))} is missing")
        return kind(**values)

    return make


def _row(readers: list[Reader]) -> Reader:
    def make(found: list[Any]) -> Any:
        if len(found) != len(readers):
            raise _Misfit(f"{found!r:.60} has not {len(readers)} values")
        return tuple(reader(one) for reader, one in zip(readers, found, strict=True))

    return make


def _word(words: dict[str, Any]) -> Reader:
    def read(found: Any) -> Any:
        if not isinstance(found, str) or found not in words:
            raise _Misfit(f"{found!r:.60} is not one of {', '.join(words)}")
        return words[found]

    return read


def _number(types: tuple[type, ...]) -> Reader:
    def read(found: Any) -> Any:
        if type(found) not in types or not -NUMBER_MAX < found < NUMBER_MAX:
            raise _Misfit(f"{found!r:.60} is no such number")
        return found

    return read
