"""Typed documents from the JSON that another process sent. Pure.

Every value must have the type of its field, and a number must be one that JSON can carry on. Fields
that a later release added are left out; those that an earlier release lacks have their defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

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
    status: HostStatus = read(PairStatus if is_pair else SyphonStatus, document)
    if status.version > VERSION:
        raise StatusUnreadable(f"it has version {status.version}, this release reads {VERSION}")
    return status


def read(kind: type[Document], document: object) -> Document:
    """Return the document as a dataclass of this kind; StatusUnreadable if it does not fit."""
    try:
        made: Document = _reader(kind)(document)
    except _Misfit as error:
        raise StatusUnreadable(str(error)) from None
    return made


@cache
def _reader(kind: Any) -> Reader:
    """Return the function that reads a value of this type."""
    origin, inside = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        assert isinstance(kind, type)
        return _record_reader(kind)
    if origin is dict:
        return _dict_reader(_reader(inside[1]))
    if origin is list:
        return _list_reader(_reader(inside[0]))
    if origin is tuple:
        return _tuple_reader([_reader(one) for one in inside])
    if origin is Literal:
        return _word_reader({word: word for word in inside})
    if NoneType in inside:
        return _optional_reader(_reader(inside[0]))
    if issubclass(kind, StrEnum):
        return _word_reader({str(member): member for member in kind})
    if kind in (int, float):
        return _number_reader((int, float) if kind is float else (int,))
    return _exact_reader(kind)


def _record_reader(kind: type) -> Reader:
    hints = get_type_hints(kind)
    readers = {one.name: _reader(hints[one.name]) for one in fields(kind)}
    required = {
        one.name
        for one in fields(kind)
        if one.default is MISSING and one.default_factory is MISSING
    }

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Misfit(f"{value!r:.60} is no object")
        name = ""
        try:
            found = {}
            for name, given in value.items():
                if (reader := readers.get(name)) is not None:
                    found[name] = reader(given)
        except _Misfit as error:
            raise _Misfit(f"{name}: {error}") from None
        if not required <= found.keys():
            raise _Misfit(f"{', '.join(sorted(required - found.keys()))} is missing")
        return kind(**found)

    return read


def _dict_reader(reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Misfit(f"{value!r:.60} is no object")
        return {name: reader(given) for name, given in value.items()}

    return read


def _list_reader(reader: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise _Misfit(f"{value!r:.60} is no list")
        return [reader(given) for given in value]

    return read


def _tuple_reader(readers: list[Reader]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise _Misfit(f"{value!r:.60} is no list of {len(readers)}")
        return tuple(reader(given) for reader, given in zip(readers, value, strict=True))

    return read


def _optional_reader(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


def _word_reader(words: dict[str, Any]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not str or value not in words:
            raise _Misfit(f"{value!r:.60} is not one of {', '.join(words)}")
        return words[value]

    return read


def _number_reader(types: tuple[type, ...]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) not in types or not -NUMBER_MAX < value < NUMBER_MAX:
            raise _Misfit(f"{value!r:.60} is no such number")
        return value

    return read


def _exact_reader(kind: type) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _Misfit(f"{value!r:.60} is no {kind.__name__}")
        return value

    return read
