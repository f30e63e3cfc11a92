"""Prepares a message of a twin to be sent home: as it is, without the mark of its divert.

A twin has one destination, its namesake in the primary, so its messages need no aliases. Everything
in a marked twin belongs home, a message without a divert mark too: an application that was pointed
at the secondary by hand sends without one, and once the outage is over the namesake is where the
consumers are. A mark that names another primary, or that cannot be read, is foreign input. Such a
message is left to the consumers of the twin.
"""

from __future__ import annotations

from typing import Final

from twinbus.amqp.decoding import decode
from twinbus.amqp.encoding import encode, uint
from twinbus.amqp.message import APPLICATION_PROPERTIES, HEADER, PROPERTIES, Sections, join, split
from twinbus.amqp.types import AmqpError, Timestamp
from twinbus.servicebus.names import DATE_MAX_MS
from twinbus.servicebus.twins import DIVERTED, read_divert_mark
from twinbus.transfer.sections import (
    ABSOLUTE_EXPIRY,
    CREATION,
    NULL,
    TTL,
    UINT_MAX,
    entries_of,
    fields_of,
    time_to_live_ms,
    with_entries,
    with_fields,
    without_delivery_marks,
)
from twinbus.transfer.unpacking import (
    EXPIRED,
    MALFORMED,
    NOT_RESTORED,
    UNFORESEEN,
    BacklogMessage,
    message_id_in,
    read_broker_annotations,
)

FOREIGN: Final = "ForeignDivertMark"

_DIVERTED: Final = DIVERTED.encode()


class TwinUnpacker:
    """Unpacks the deliveries of one twin; has the interface of `transfer.unpacking.Unpacker`."""

    def __init__(self, path: str, label: str, *, remaining_ttl: bool = False) -> None:
        """`path` names the twin and its home; `label` is the label of the primary."""
        self._path = path
        self._destination = path.lower()
        self._label = label
        self._remaining_ttl = remaining_ttl

    def unpack(self, payload: bytes, lock_token: bytes, now_ms: int) -> BacklogMessage:
        """Return the message in a delivery; `is_left`: it stays with the twin's consumers."""
        message = BacklogMessage(
            lock_token, len(payload), path=self._path, destination=self._destination
        )
        try:
            self._fill(message, split(payload), now_ms)
        except AmqpError as error:
            message.fault = (MALFORMED, f"the message cannot be read: {error}")
        except UNFORESEEN as error:
            # Raised further it would end the connection at each delivery.
            message.fault = (NOT_RESTORED, f"preparing the message failed: {error!r:.400}")
        # An expired message is dead-lettered, as the service does; any other is not ours to judge.
        message.is_left = message.fault is not None and message.fault[0] != EXPIRED
        return message

    def _fill(self, message: BacklogMessage, sections: Sections, now_ms: int) -> None:
        read_broker_annotations(message, sections.message_annotations, now_ms)
        message.message_id = message_id_in(sections.properties)
        home = without_delivery_marks(sections)
        if _DIVERTED in sections.application_properties:
            message.fault = self._remove_mark(home, message)
        if message.fault is None:
            message.fault = self._restart_time_to_live(home, message, now_ms)
        if message.fault is None:
            message.wire = join(home)

    def _remove_mark(self, home: Sections, message: BacklogMessage) -> tuple[str, str] | None:
        """Remove the divert mark; return why the message is foreign, or None."""
        raw = home.application_properties
        entries = entries_of(raw)
        for key, _, value_at, _ in entries:
            if key != _DIVERTED:
                continue
            value = decode(raw, value_at)[0]
            mark = read_divert_mark(value)
            if mark is None or mark.label != self._label:
                text = (
                    f"message {message.message_id} (sequence number {message.sequence_number}) has"
                    f" {DIVERTED} = {value!r:.120}, which is not a mark of {self._label}; it is"
                    " left in the twin: let its consumers take it, or remove it"
                )
                return FOREIGN, text
        home.application_properties = with_entries(
            raw, APPLICATION_PROPERTIES, entries, without=(_DIVERTED,)
        )
        return None

    def _restart_time_to_live(
        self, home: Sections, message: BacklogMessage, now_ms: int
    ) -> tuple[str, str] | None:
        """Let the time to live start again at home, or what is left of it (`ttl_policy`).

        Return why the message is expired, or None.
        """
        header, properties = fields_of(home.header), fields_of(home.properties)
        whole_ms, has_dates = time_to_live_ms(home, header, properties, message.enqueued_ms)
        if whole_ms is None:
            return None
        left_ms = whole_ms
        if self._remaining_ttl and message.enqueued_ms:
            left_ms -= max(0, now_ms - message.enqueued_ms)
            if left_ms <= 0:
                text = f"its time to live of {whole_ms / 1000:g} s ended in the twin"
                return EXPIRED, text
        if left_ms == whole_ms and not has_dates:
            return None  # Every byte stays.
        ttl = uint(min(left_ms, UINT_MAX))
        home.header = with_fields(home.header, HEADER, header, {TTL: ttl})
        if has_dates or left_ms > UINT_MAX:
            # The dates are those of the send to the twin; a header alone says less than 50 days.
            dates = {ABSOLUTE_EXPIRY: NULL, CREATION: NULL}
            if left_ms > UINT_MAX:
                ends = Timestamp(min(now_ms + left_ms, DATE_MAX_MS))
                dates = {ABSOLUTE_EXPIRY: encode(ends), CREATION: encode(Timestamp(now_ms))}
            home.properties = with_fields(home.properties, PROPERTIES, properties, dates)
        return None
