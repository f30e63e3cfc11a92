"""Twinbus: an application keeps sending while its Service Bus namespace is down.

The public names. They load on first use, so `import twinbus` is fast and needs none of the extras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinbus.broker.embedded import EmbeddedBroker
    from twinbus.broker.faults import Fault
    from twinbus.errors import (
        AliasTypeError,
        AliasValueError,
        BacklogFormatError,
        BacklogGuardError,
        BacklogMessageTooLargeError,
        BacklogUnavailableError,
        BrokerError,
        BrokerStartError,
        CredentialError,
        EntityUnusableError,
        InvalidDestinationError,
        ListenError,
        MissingDestinationError,
        MissingPackageError,
        MissingRightError,
        NamespaceInUseError,
        PairClosedError,
        PairFaultedError,
        PairingError,
        PairNotStartedError,
        PartialDivertError,
        ReservedPropertyError,
        SameNamespaceError,
        ScheduleUnavailableError,
        ScheduleUnknownError,
        StoreError,
        StoreFull,
        TransferError,
        TwinbusError,
        WrongKeyError,
    )
    from twinbus.namespace.namespace import Namespace
    from twinbus.options import SendAvailabilityOptions, Verdict, classify
    from twinbus.pair import Pair, pair_namespaces
    from twinbus.pairing.lifecycle.closing import PairSide
    from twinbus.pairing.observing.events import (
        BacklogQueueFound,
        BacklogQueueLeftOut,
        BacklogQueuePulled,
        BacklogQueueReturned,
        EntityChanged,
        EntityHeld,
        EventsDropped,
        EventStream,
        GuardWarned,
        PairEvent,
        PingEnded,
        ProtectionChanged,
        RightMissing,
        SideChanged,
    )
    from twinbus.pairing.sending.sender import MessageSender, PairedSender
    from twinbus.status.document import PairStatus

__version__ = "0.1.0.dev0"

__all__ = [
    "AliasTypeError",
    "AliasValueError",
    "BacklogFormatError",
    "BacklogGuardError",
    "BacklogMessageTooLargeError",
    "BacklogQueueFound",
    "BacklogQueueLeftOut",
    "BacklogQueuePulled",
    "BacklogQueueReturned",
    "BacklogUnavailableError",
    "BrokerError",
    "BrokerStartError",
    "CredentialError",
    "EmbeddedBroker",
    "EntityChanged",
    "EntityHeld",
    "EntityUnusableError",
    "EventStream",
    "EventsDropped",
    "Fault",
    "GuardWarned",
    "InvalidDestinationError",
    "ListenError",
    "MessageSender",
    "MissingDestinationError",
    "MissingPackageError",
    "MissingRightError",
    "Namespace",
    "NamespaceInUseError",
    "Pair",
    "PairClosedError",
    "PairEvent",
    "PairFaultedError",
    "PairNotStartedError",
    "PairSide",
    "PairStatus",
    "PairedSender",
    "PairingError",
    "PartialDivertError",
    "PingEnded",
    "ProtectionChanged",
    "ReservedPropertyError",
    "RightMissing",
    "SameNamespaceError",
    "ScheduleUnavailableError",
    "ScheduleUnknownError",
    "SendAvailabilityOptions",
    "SideChanged",
    "StoreError",
    "StoreFull",
    "TransferError",
    "TwinbusError",
    "Verdict",
    "WrongKeyError",
    "classify",
    "pair_namespaces",
]

_NAMES = {
    "twinbus.broker.embedded": "EmbeddedBroker",
    "twinbus.broker.faults": "Fault",
    "twinbus.errors": """
        AliasTypeError AliasValueError BacklogFormatError BacklogGuardError
        BacklogMessageTooLargeError BacklogUnavailableError BrokerError BrokerStartError
        CredentialError EntityUnusableError InvalidDestinationError ListenError
        MissingDestinationError MissingPackageError MissingRightError NamespaceInUseError
        PairClosedError PairFaultedError PairingError PairNotStartedError PartialDivertError
        ReservedPropertyError SameNamespaceError ScheduleUnavailableError ScheduleUnknownError
        StoreError StoreFull TransferError TwinbusError WrongKeyError
    """,
    "twinbus.namespace.namespace": "Namespace",
    "twinbus.options": "SendAvailabilityOptions Verdict classify",
    "twinbus.pair": "Pair pair_namespaces",
    "twinbus.pairing.observing.events": """
        BacklogQueueFound BacklogQueueLeftOut BacklogQueuePulled BacklogQueueReturned
        EntityChanged EntityHeld EventStream EventsDropped GuardWarned PairEvent PingEnded
        ProtectionChanged RightMissing SideChanged
    """,
    "twinbus.status.document": "PairStatus",
    "twinbus.pairing.lifecycle.closing": "PairSide",
    "twinbus.pairing.sending.sender": "MessageSender PairedSender",
}
"""Module and names of each public object; `__all__` lists the same names for type checkers."""

_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # a checker that sees this function accepts every name

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'twinbus' has no attribute {name!r}")
        from twinbus.extras import load

        value = load(home, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
