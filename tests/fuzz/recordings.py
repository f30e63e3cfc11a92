"""Recorded client sessions as frames, and mutations of frames and of their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.values import ANY_VALUE
from tests.fuzz.world import MANAGE_TOKEN, OTHER_TOKENS
from twinbus.amqp import encoding
from twinbus.amqp.decoding import decode
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.performatives import (
    Accepted,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Performative,
)
from twinbus.amqp.types import AmqpError, Described, UInt, UShort

SEEDS = Path(__file__).parent / "seeds"

HEAD_BYTES = 8
REPEATS_MAX = 40
STREAM_BYTES_MAX = 256 * 1024

Frames = list[bytes]

CHANNELS = 4
_WINDOW = UInt(100)
_BEGIN = Begin(next_outgoing_id=UInt(0), incoming_window=_WINDOW, outgoing_window=_WINDOW)
_SECOND = [replace(_BEGIN, remote_channel=UShort(channel)) for channel in range(2)]
CRAFTED: tuple[tuple[Performative, ...], ...] = (
    (_BEGIN,),
    *((begin,) for begin in _SECOND),
    *((begin, End()) for begin in _SECOND * 3),
    *((Detach(handle=UInt(handle), closed=True),) for handle in range(4)),
    (Disposition(role=True, first=UInt(0), last=UInt(2**31 - 1), settled=True, state=Accepted()),),
    (End(),),
    (Close(),),
)
"""Frames that take things away, or that begin them twice."""


@cache
def recordings() -> tuple[tuple[bytes, ...], ...]:
    """The frames of each recorded session, the protocol headers among them."""
    files = sorted(SEEDS.glob("*.amqp"))
    return tuple(tuple(frames_of(file.read_bytes())) for file in files)


def frames_of(stream: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(stream):
        is_header = stream[at : at + 4] == b"AMQP"
        size = HEAD_BYTES if is_header else int.from_bytes(stream[at : at + 4])
        yield stream[at : at + size]
        at += size


@dataclass(frozen=True)
class Mutation:
    """One change of a stream: which, at what frame, and what else it needs."""

    kind: str
    at: int
    to: int = 0
    value: Any = None

    def apply(self, frames: Frames) -> None:
        if frames:
            MUTATIONS[self.kind](frames, self.at % len(frames), self)


def _drop(frames: Frames, at: int, _: Mutation) -> None:
    del frames[at]


def _repeat(frames: Frames, at: int, given: Mutation) -> None:
    frames[at:at] = [frames[at]] * (given.to % REPEATS_MAX)


def _swap(frames: Frames, at: int, given: Mutation) -> None:
    other = given.to % len(frames)
    frames[at], frames[other] = frames[other], frames[at]


def _copy(frames: Frames, at: int, given: Mutation) -> None:
    frames.insert(given.to % (len(frames) + 1), frames[at])


def _splice(frames: Frames, at: int, given: Mutation) -> None:
    """Bring in the frames of another recording."""
    other = recordings()[given.to % len(recordings())]
    frames[at:at] = [frame for frame in other if not frame.startswith(b"AMQP")][3:]


def _flip(frames: Frames, at: int, given: Mutation) -> None:
    frame = bytearray(frames[at])
    frame[given.to % len(frame)] ^= 1 << (given.at % 8)
    frames[at] = bytes(frame)


def _cut(frames: Frames, at: int, given: Mutation) -> None:
    """Shorten a frame, its size with it."""
    frame = frames[at]
    frames[at] = _sized(frame, frame[HEAD_BYTES : HEAD_BYTES + given.to % len(frame)])


def _channel(frames: Frames, at: int, given: Mutation) -> None:
    frame = frames[at]
    frames[at] = frame[:6] + (given.to % CHANNELS).to_bytes(2) + frame[8:]


def _field(frames: Frames, at: int, given: Mutation) -> None:
    """Give a field of the performative another value; now and then of one inside it."""
    frame = frames[at]
    try:
        performative, end = decode(frame, HEAD_BYTES)
        _set(performative, given.to, given.value)
        frames[at] = _sized(frame, encoding.encode(performative) + frame[end:])
    except (AmqpError, TypeError, RecursionError):
        return


def _section(frames: Frames, at: int, given: Mutation) -> None:
    """Give an entry of a transfer's message, in any section, another value."""
    frame = frames[at]
    try:
        _, start = decode(frame, HEAD_BYTES)
        parts, offset = [], start
        while offset < len(frame):
            part, offset = decode(frame, offset)
            parts.append(part)
        if not parts:
            return
        _set(parts[given.to % len(parts)], given.to // len(parts), given.value)
        frames[at] = _sized(frame, frame[HEAD_BYTES:start] + b"".join(map(encoding.encode, parts)))
    except (AmqpError, TypeError, RecursionError):
        return


def _set(holder: Any, place: int, value: Any) -> None:
    """Put `value` in a place of a described list or map, or deeper in."""
    if isinstance(holder, Described):
        inner = holder.value
        if not isinstance(inner, (list, dict, Described)) or not inner:
            holder.value = value
            return
        holder = inner
    if isinstance(holder, Described):
        _set(holder, place, value)
        return
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    if not keys:
        return
    key = keys[place % len(keys)]
    deeper = place // len(keys)
    if isinstance(holder[key], (Described, list, dict)) and holder[key] and deeper % 2:
        _set(holder[key], deeper // 2, value)
    else:
        holder[key] = value


def _craft(frames: Frames, at: int, given: Mutation) -> None:
    """Insert frames that no client sends there, on one of the channels that clients use."""
    other, number = divmod(given.to, len(CRAFTED))
    channel = other % CHANNELS
    frames[at:at] = [encode_frame(channel, each) for each in CRAFTED[number]]


def _right(frames: Frames, _: int, given: Mutation) -> None:
    """Put a token of another right."""
    token = OTHER_TOKENS[given.to % len(OTHER_TOKENS)]
    frames[:] = [frame.replace(MANAGE_TOKEN.encode(), token) for frame in frames]


def _sized(frame: bytes, body: bytes) -> bytes:
    return (HEAD_BYTES + len(body)).to_bytes(4) + frame[4:HEAD_BYTES] + body


MUTATIONS: dict[str, Callable[[Frames, int, Mutation], None]] = {
    "drop": _drop,
    "repeat": _repeat,
    "swap": _swap,
    "copy": _copy,
    "splice": _splice,
    "flip": _flip,
    "cut": _cut,
    "channel": _channel,
    "field": _field,
    "section": _section,
    "right": _right,
    "craft": _craft,
}

_KINDS = st.sampled_from((*MUTATIONS, *("field", "section") * 3, *("craft",) * 2))
mutations = st.builds(Mutation, _KINDS, st.integers(0, 200), st.integers(0, 10_000), ANY_VALUE)


def mutated(number: int, changes: list[Mutation], kept_percent: int) -> bytes:
    """The first frames of a recording after these changes.

    Whole, the recordings take leave of everything they have opened.
    """
    frames = list(recordings()[number % len(recordings())])
    del frames[len(frames) * kept_percent // 100 :]
    for change in changes:
        change.apply(frames)
    return b"".join(frames)[:STREAM_BYTES_MAX]
