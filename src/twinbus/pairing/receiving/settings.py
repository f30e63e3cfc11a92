"""What a receiver was asked for, checked as the SDK checks it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode, ServiceBusSubQueue

from twinbus.client.receiving import NEXT_SESSION, NO_SESSION, SessionChoice
from twinbus.pairing.receiving.side import SESSION_WAIT_S, LinkSettings
from twinbus.servicebus.names import dead_letter_path, transfer_dead_letter_path

PREFETCH_MAX: Final = 50_000

CARRIER_OPTIONS: Final = frozenset({"socket_timeout", "keep_alive"})
"""Options of the SDK's own connections, which have no meaning for ours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiverSettings:
    """The options of one receiver; the names are the SDK's."""

    entity_path: str
    """Of a queue, a subscription, or the sub-queue of one."""
    receive_mode: ServiceBusReceiveMode
    session: str | SessionChoice
    max_wait_time: float | None
    auto_lock_renewer: Any
    prefetch_count: int
    client_identifier: str

    @property
    def deletes(self) -> bool:
        return self.receive_mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE

    def for_link(self) -> LinkSettings:
        return LinkSettings(
            path=self.entity_path,
            receive_and_delete=self.deletes,
            session=self.session,
            session_wait_s=self.max_wait_time or SESSION_WAIT_S,
            client_id=self.client_identifier,
        )


def receiver_settings(
    path: str,
    *,
    session_id: Any = None,
    sub_queue: Any = None,
    receive_mode: Any = ServiceBusReceiveMode.PEEK_LOCK,
    max_wait_time: float | None = None,
    auto_lock_renewer: Any = None,
    prefetch_count: int = 0,
    client_identifier: str | None = None,
    **others: Any,
) -> ReceiverSettings:
    """Check the options of `get_queue_receiver`; raise what the SDK raises for wrong ones."""
    if unknown := set(others) - CARRIER_OPTIONS:
        warnings.warn(f"Unsupported keyword args: {sorted(unknown)}", stacklevel=4)
    if sub_queue and session_id:
        raise ValueError(
            "session_id and sub_queue can not be specified simultaneously. To connect to the sub"
            " queue of a sessionful queue, please set sub_queue only as sub_queue does not support"
            " session."
        )
    mode, prefetch = ServiceBusReceiveMode(receive_mode), int(prefetch_count)
    if not 0 <= prefetch <= PREFETCH_MAX:
        raise ValueError(
            f"prefetch_count must be an integer between 0 and {PREFETCH_MAX} inclusive."
        )
    if max_wait_time is not None and max_wait_time <= 0:
        raise ValueError("The max_wait_time must be greater than 0.")
    require_locks(auto_lock_renewer, receive_mode=mode, session_id=session_id)
    session: str | SessionChoice = NO_SESSION
    if session_id is not None:
        # As it is: the service refuses what is no text, as it does for the SDK.
        session = NEXT_SESSION if session_id == NEXT_AVAILABLE_SESSION else session_id
    return ReceiverSettings(
        entity_path=path if not sub_queue else _sub_queue_path(path, sub_queue),
        receive_mode=mode,
        session=session,
        max_wait_time=max_wait_time,
        auto_lock_renewer=auto_lock_renewer,
        prefetch_count=prefetch,
        client_identifier=client_identifier or f"SBReceiver-{uuid4()}",
    )


def require_locks(
    auto_lock_renewer: Any,
    *,
    receive_mode: Any = ServiceBusReceiveMode.PEEK_LOCK,
    session_id: Any = None,
    **_: Any,
) -> None:
    """Raise what the SDK raises for a renewer of locks if the receiver has none."""
    deletes = ServiceBusReceiveMode(receive_mode) is ServiceBusReceiveMode.RECEIVE_AND_DELETE
    if auto_lock_renewer and deletes and session_id is None:
        raise ValueError(
            "Messages received in RECEIVE_AND_DELETE receive mode cannot have their locks removed"
            " as they have been deleted, providing an AutoLockRenewer in this mode is invalid."
        )


def _sub_queue_path(path: str, sub_queue: Any) -> str:
    if ServiceBusSubQueue(sub_queue) is ServiceBusSubQueue.TRANSFER_DEAD_LETTER:
        return transfer_dead_letter_path(path)
    return dead_letter_path(path)
