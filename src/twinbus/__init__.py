"""Twinbus: an application keeps sending while its Service Bus namespace is down.

The public door. Names load on first use, so that `import twinbus` costs next to nothing and needs
none of the extras.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinbus.broker.embedded import (
        EmbeddedBroker,
    )
    from twinbus.errors import (
        AliasTypeError,
        AliasValueError,
        BacklogGuardError,
        BacklogMessageTooLargeError,
        BacklogUnavailableError,
        BrokerError,
        BrokerStartError,
        EntityUnusableError,
        InvalidDestinationError,
        ListenError,
        MissingDestinationError,
        MissingRightError,
        NamespaceInUseError,
        PairClosedError,
        PairFaultedError,
        PairingError,
        PartialDivertError,
        ReservedPropertyError,
        SameNamespaceError,
        ScheduleUnavailableError,
        StoreError,
        StoreFull,
        TransferError,
        TwinbusError,
    )
    from twinbus.namespace.namespace import Namespace
    from twinbus.options import (
        SendAvailabilityOptions,
        Verdict,
    )
    from twinbus.pair import (
        pair_namespaces,
    )
    from twinbus.pairing.core.announcements import (
        BacklogQueueFound,
        BacklogQueueLeftOut,
        BacklogQueuePulled,
        BacklogQueueReturned,
        EntityChanged,
        EntityHeld,
        EventsDropped,
        GuardWarned,
        PairEvent,
        PingEnded,
        ProtectionChanged,
        SideChanged,
    )

__version__ = "0.1.0.dev0"

__all__ = [
    "AliasTypeError",
    "AliasValueError",
    "BacklogGuardError",
    "BacklogMessageTooLargeError",
    "BacklogQueueFound",
    "BacklogQueueLeftOut",
    "BacklogQueuePulled",
    "BacklogQueueReturned",
    "BacklogUnavailableError",
    "BrokerError",
    "BrokerStartError",
    "EmbeddedBroker",
    "EntityChanged",
    "EntityHeld",
    "EntityUnusableError",
    "EventsDropped",
    "GuardWarned",
    "InvalidDestinationError",
    "ListenError",
    "MissingDestinationError",
    "MissingRightError",
    "Namespace",
    "NamespaceInUseError",
    "PairClosedError",
    "PairEvent",
    "PairFaultedError",
    "PairingError",
    "PartialDivertError",
    "PingEnded",
    "ProtectionChanged",
    "ReservedPropertyError",
    "SameNamespaceError",
    "ScheduleUnavailableError",
    "SendAvailabilityOptions",
    "SideChanged",
    "StoreError",
    "StoreFull",
    "TransferError",
    "TwinbusError",
    "Verdict",
    "pair_namespaces",
]

_HOMES = {
    "AliasTypeError": "twinbus.errors",
    "AliasValueError": "twinbus.errors",
    "BacklogGuardError": "twinbus.errors",
    "BacklogMessageTooLargeError": "twinbus.errors",
    "BacklogQueueFound": "twinbus.pairing.core.announcements",
    "BacklogQueueLeftOut": "twinbus.pairing.core.announcements",
    "BacklogQueuePulled": "twinbus.pairing.core.announcements",
    "BacklogQueueReturned": "twinbus.pairing.core.announcements",
    "BacklogUnavailableError": "twinbus.errors",
    "BrokerError": "twinbus.errors",
    "BrokerStartError": "twinbus.errors",
    "EmbeddedBroker": "twinbus.broker.embedded",
    "EntityChanged": "twinbus.pairing.core.announcements",
    "EntityHeld": "twinbus.pairing.core.announcements",
    "EntityUnusableError": "twinbus.errors",
    "EventsDropped": "twinbus.pairing.core.announcements",
    "GuardWarned": "twinbus.pairing.core.announcements",
    "InvalidDestinationError": "twinbus.errors",
    "ListenError": "twinbus.errors",
    "MissingDestinationError": "twinbus.errors",
    "MissingRightError": "twinbus.errors",
    "Namespace": "twinbus.namespace.namespace",
    "NamespaceInUseError": "twinbus.errors",
    "PairClosedError": "twinbus.errors",
    "PairEvent": "twinbus.pairing.core.announcements",
    "PairFaultedError": "twinbus.errors",
    "PairingError": "twinbus.errors",
    "PartialDivertError": "twinbus.errors",
    "PingEnded": "twinbus.pairing.core.announcements",
    "ProtectionChanged": "twinbus.pairing.core.announcements",
    "ReservedPropertyError": "twinbus.errors",
    "SameNamespaceError": "twinbus.errors",
    "ScheduleUnavailableError": "twinbus.errors",
    "SendAvailabilityOptions": "twinbus.options",
    "SideChanged": "twinbus.pairing.core.announcements",
    "StoreError": "twinbus.errors",
    "StoreFull": "twinbus.errors",
    "TransferError": "twinbus.errors",
    "TwinbusError": "twinbus.errors",
    "Verdict": "twinbus.options",
    "pair_namespaces": "twinbus.pair",
}
"""Where each public name lives; the layout test holds its keys to `__all__`."""


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'twinbus' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
