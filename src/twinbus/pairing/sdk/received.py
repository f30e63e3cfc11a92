"""Messages and sessions of a paired receiver, as the SDK's own receiver gives them.

With decoding.py it is all of the receiving side that touches internals of the SDK. An application
gets `ServiceBusReceivedMessage` objects that behave alike whichever client carried them.
"""

from __future__ import annotations

import time
import warnings
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from uuid import UUID

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusSession
from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError

from twinbus.pairing.core.sides import Side
from twinbus.pairing.sdk.decoding import decode_message
from twinbus.pairing.sdk.making import received_object
from twinbus.servicebus.names import ENQUEUED_TIME, LOCKED_UNTIL, SEQUENCE_NUMBER
from twinbus.servicebus.twins import own_number, secondary_number
from twinbus.transfer.identity import Head

_SEQUENCE: Final = SEQUENCE_NUMBER.encode()
_ENQUEUED: Final = ENQUEUED_TIME.encode()
_LOCKED: Final = LOCKED_UNTIL.encode()
_DELETES: Final = ServiceBusReceiveMode.RECEIVE_AND_DELETE


class Undecodable(ValueError):
    """The SDK cannot decode a message."""


def received_message(
    receiver: Any,
    side: Side,
    data: bytes,
    *,
    head: Head | None = None,
    tag: bytes | None = None,
    number: int | None = None,
    mode: ServiceBusReceiveMode = ServiceBusReceiveMode.PEEK_LOCK,
    **how: Any,
) -> ServiceBusReceivedMessage:
    """Return the SDK's message object of a delivery, or of an answer with messages.

    `head` is what was read of it already. `how` are the SDK's own: lock_token,
    is_deferred_message, is_peeked_message.
    """
    try:
        decoded = decode_message(data, head)
    except Exception as error:
        # Its decoder raises whatever its own code meets: foreign bytes, written by any client.
        raise Undecodable(f"the SDK cannot decode the message: {error!r:.200}") from error
    frame = None if tag is None else (None, number, tag)
    message = received_object(receiver, decoded, frame, mode, **how)
    if side is Side.SECONDARY:
        annotations = _annotations_of(message)
        if isinstance(annotations.get(_SEQUENCE), int):
            annotations[_SEQUENCE] = secondary_number(annotations[_SEQUENCE])
    return message


class Origin:
    """Where a message came from; kept on the message object, and dropped when that is pickled."""

    __slots__ = ("data", "delivery", "side", "stamps")

    def __init__(
        self,
        side: Any = None,
        delivery: Any = None,
        stamps: tuple[int, int] | None = None,
        data: bytes | None = None,
    ) -> None:
        self.side = side
        """The ReceivingSide; None: not known."""
        self.delivery = delivery
        """None: it was received by its sequence number, and is settled by its lock token."""
        self.stamps = stamps
        """Its sequence number in its own namespace, and its enqueued time in milliseconds."""
        self.data = data
        """Of one without a delivery: all its sections, as they were on the wire."""

    def __reduce__(self) -> tuple[type[Origin], tuple[()]]:
        return Origin, ()


def set_origin(
    message: ServiceBusReceivedMessage, side: Any, delivery: Any, data: bytes | None = None
) -> Origin:
    annotations = _annotations_of(message)
    number, enqueued_ms = annotations.get(_SEQUENCE), annotations.get(_ENQUEUED)
    stamps = None
    if type(number) is int and type(enqueued_ms) is int:
        stamps = own_number(number), enqueued_ms
    origin = Origin(side, delivery, stamps, data)
    message._twinbus_origin = origin  # type: ignore[attr-defined]
    return origin


def _annotations_of(message: ServiceBusReceivedMessage) -> Any:
    # Not by the two properties: each message comes by here three times.
    return message._raw_amqp_message._annotations or {}


def origin_of(message: ServiceBusReceivedMessage) -> Origin:
    """Where a message came from; an empty Origin for a message of another receiver."""
    return getattr(message, "_twinbus_origin", None) or Origin()


def require_settleable(message: Any, action: str, mode: ServiceBusReceiveMode) -> None:
    """Raise what the SDK's receiver raises for a message that cannot be settled or renewed."""
    if not isinstance(message, ServiceBusReceivedMessage):
        raise TypeError("Parameter 'message' must be of type ServiceBusReceivedMessage")
    if message._is_peeked_message:
        raise ValueError(
            f"The operation {action} is not supported for peeked messages."
            "Only messages received using receive methods in PEEK_LOCK mode can be settled."
        )
    if mode == _DELETES:
        raise ValueError(
            f"The operation {action} is not supported in 'RECEIVE_AND_DELETE' receive mode."
        )
    if message._settled:
        raise MessageAlreadySettled(action=action)


def require_unexpired(message: ServiceBusReceivedMessage) -> None:
    """Raise MessageLockLostError if the lock of a message without a session has ended.

    A lock that had ended when its message came says that our clock is ahead of the service's. Then
    the service decides: no message could ever be settled otherwise.
    """
    until_ms = _annotations_of(message).get(_LOCKED)
    # Until it is read or renewed, the end that came with the message is enough.
    is_unread = message._expiry is None and type(until_ms) is int
    if is_unread and until_ms > time.time_ns() // 1_000_000:
        return
    until = message.locked_until_utc
    if until is None or until > datetime.now(UTC):
        return
    came_ms = message._received_timestamp_utc.timestamp() * 1_000
    if type(until_ms) is not int or until_ms > came_ms:
        raise MessageLockLostError(
            message="The lock on the message lock has expired.", error=message.auto_renew_error
        )


def mark_settled(message: ServiceBusReceivedMessage) -> None:
    message._settled = True


def mark_renewed(message: ServiceBusReceivedMessage, until: datetime) -> None:
    message._expiry = until


def lock_token_of(message: ServiceBusReceivedMessage) -> UUID | None:
    token = message.lock_token
    return token if isinstance(token, UUID) or token is None else UUID(str(token))


class SessionOwner(Protocol):
    """What a session asks its receiver for."""

    def require_live(self) -> None: ...

    async def get_session_state(self, timeout_s: float | None) -> bytes | None: ...

    async def set_session_state(self, state: bytes | None, timeout_s: float | None) -> None: ...

    async def renew_session_lock(self, timeout_s: float | None) -> datetime: ...


class PairedSession(ServiceBusSession):
    """The session of a paired receiver; an AutoLockRenewer of the SDK takes it."""

    def __init__(self, session_id: Any, receiver: Any) -> None:
        super().__init__(session_id, receiver)
        self._owner: SessionOwner = receiver
        self._is_clock_ahead = False

    async def get_state(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  # the SDK's signature
        **kwargs: Any,
    ) -> bytes:
        self._require(timeout, kwargs)
        return await self._owner.get_session_state(timeout)  # type: ignore[return-value]

    async def set_state(
        self,
        state: str | bytes | bytearray | None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **kwargs: Any,
    ) -> None:
        self._require(timeout, kwargs)
        raw = state.encode() if isinstance(state, str) else state
        await self._owner.set_session_state(None if raw is None else bytes(raw), timeout)

    async def renew_lock(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        **kwargs: Any,
    ) -> datetime:
        self._require(timeout, kwargs)
        until = await self._owner.renew_session_lock(timeout)
        self.locked(until)
        return until

    def _require(self, timeout: float | None, unknown: dict[str, Any]) -> None:
        self._owner.require_live()
        require_timeout(timeout, unknown)

    def opened(self, session_id: str, until: datetime | None) -> None:
        """A link got the lock of this session."""
        self._session_id = session_id
        self._lock_lost = False
        self.locked(until)

    def locked(self, until: datetime | None) -> None:
        """The service has just given or renewed the lock."""
        self._locked_until_utc = until  # type: ignore[assignment]
        self._is_clock_ahead = until is not None and until <= datetime.now(UTC)
        if self._session_start is None:
            self._session_start = datetime.now(UTC)  # type: ignore[assignment]

    @property
    def _lock_expired(self) -> bool:
        # By our clock, unless that is ahead of the service's: then the service decides.
        return not self._is_clock_ahead and super()._lock_expired

    @property
    def is_lost(self) -> bool:
        """Whether the lock ended: the link that held it did, or its time is over."""
        return self._lock_lost or self._lock_expired

    @property
    def is_taken_away(self) -> bool:
        """Whether the link that held the lock ended; without it no message comes."""
        return self._lock_lost

    def lose(self) -> None:
        self._lock_lost = True


def require_timeout(timeout: float | None, unknown: dict[str, Any]) -> None:
    """Check the arguments that all requests of the SDK's receiver have."""
    if unknown:
        warnings.warn(f"Unsupported keyword args: {unknown}", stacklevel=4)
    if timeout is not None and timeout <= 0:
        raise ValueError("The timeout must be greater than 0.")
