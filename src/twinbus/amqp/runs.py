"""Transfers that look alike, read and written without taking each apart.

Nearly all frames of a busy link differ only in size, delivery id, tag and message. `TransferShape`
keeps what a link's incoming transfers have in common and reads a run of them with one struct each.
`TransferPrefix` does the same for the transfers that a link sends. Frames of another shape go to
the general decoder, which also reports errors.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from twinbus.amqp.events import DeliveryArrived, Event
from twinbus.amqp.fast import TRANSFER_FLAGS
from twinbus.amqp.link import LinkState, ReceiverLink

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.session import Session

__all__ = ["SHAPES_MAX", "TransferPrefix", "TransferShape"]

SHAPES_MAX: Final = 256
"""Shapes that one connection may learn in all: a peer whose transfers never look alike is not
studied for ever."""

OPEN: Final = LinkState.OPEN
_FRAME: Final = struct.Struct(">BBH").pack
_HANDLE_BYTES: Final = {0x43: 1, 0x52: 2, 0x70: 5}
_UINT: Final = 0x70
_SHORT_BINARY: Final = 0xA0
_SHORT_LIST: Final = 0xC0


class TransferShape:
    """How the transfers of one incoming link begin, each of them a whole delivery."""

    __slots__ = ("_format", "_link", "_mark", "_session", "_settled", "_size", "_tail", "_unpack")

    def __init__(
        self, session: Session, link: ReceiverLink, tag_size: int, tail: bytes, head_size: int
    ) -> None:
        self._session = session
        self._link = link
        layout = struct.Struct(f">I{head_size}sI2s{tag_size}s{len(tail)}s")
        self._unpack = layout.unpack_from
        self._size = layout.size
        self._mark = bytes((_SHORT_BINARY, tag_size))
        self._tail = tail
        self._format = 0
        self._settled = False

    @classmethod
    def of(
        cls, session: Session, channel: int, body: bytes, delivery: DeliveryArrived
    ) -> tuple[bytes, TransferShape] | None:
        """The shape of a transfer that was read the general way, and the head to know it by.

        The head is what stands between a frame's size and its delivery id. None if the frame has
        no sizes of one byte, or a delivery id that is not written in full.
        """
        if body[3] != _SHORT_LIST:
            return None
        id_at = 6 + _HANDLE_BYTES.get(body[6], 0)
        if id_at == 6 or body[id_at] != _UINT or body[id_at + 5] != _SHORT_BINARY:
            return None
        tag_size = body[id_at + 6]
        tail = body[id_at + 7 + tag_size : 5 + body[4]]
        head = _FRAME(2, 0, channel) + body[: id_at + 1]
        shape = cls(session, delivery.link, tag_size, tail, len(head))
        shape._format = delivery.message_format
        shape._settled = delivery.settled
        return head, shape

    def take_run(
        self, data: bytes, position: int, head: bytes, most_bytes: int, events: list[Event]
    ) -> int:
        """Read the frames from `position` on that have this shape; where the first other begins.

        `most_bytes` is the largest frame that is taken.
        """
        link = self._link
        if link.state is not OPEN or link.partial_start is not None:
            return position
        unpack, mark, tail, least = self._unpack, self._mark, self._tail, self._size
        message_format, settled = self._format, self._settled
        most_bytes = min(most_bytes, least + link.limit_bytes)
        end, last, append = len(data), len(data) - least, events.append
        before = len(events)
        while position <= last:
            size, found, delivery_id, tag_mark, tag, flags = unpack(data, position)
            stop = position + size
            if found != head or flags != tail or tag_mark != mark:
                break
            if size < least or size > most_bytes or stop > end:
                break
            payload = data[position + least : stop]
            append(DeliveryArrived(link, delivery_id, tag, message_format, settled, payload))
            position = stop
        count = len(events) - before
        if count:
            link.took(count)
            self._session.took(count)
        return position


class TransferPrefix:
    """What a link's outgoing transfers begin with, each of them a whole delivery."""

    __slots__ = ("_flags", "_head", "_mark", "_pack", "_size")

    def __init__(
        self, channel: int, handle: int, tag_size: int, settled: bool, message_format: int
    ) -> None:
        form = struct.pack(">BI", _UINT, message_format) if message_format else b"\x43"
        self._flags = form + TRANSFER_FLAGS[settled, False]
        layout = struct.Struct(f">I16sI2s{tag_size}s{len(self._flags)}s")
        self._pack: Callable[..., bytes] = layout.pack
        self._size = layout.size
        self._mark = bytes((_SHORT_BINARY, tag_size))
        self._head = struct.pack(
            ">BBH4sBBBIB",
            2,
            0,
            channel,
            b"\x00\x53\x14\xc0",
            layout.size - 13,
            11,
            _UINT,
            handle,
            _UINT,
        )

    def before(self, payload_size: int, delivery_id: int, tag: bytes) -> bytes:
        """The frame up to its message."""
        return self._pack(
            self._size + payload_size, self._head, delivery_id, self._mark, tag, self._flags
        )
