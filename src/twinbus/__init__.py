"""Twinbus: an application keeps sending while its Service Bus namespace is down.

The public names. They load on first use, so `import twinbus` is fast and needs none of the extras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinbus.broker.embedded import EmbeddedBroker as EmbeddedBroker
    from twinbus.broker.faults import Fault as Fault
    from twinbus.errors import AliasTypeError as AliasTypeError
    from twinbus.errors import AliasValueError as AliasValueError
    from twinbus.errors import BacklogFormatError as BacklogFormatError
    from twinbus.errors import BacklogGuardError as BacklogGuardError
    from twinbus.errors import BacklogMessageTooLargeError as BacklogMessageTooLargeError
    from twinbus.errors import BacklogUnavailableError as BacklogUnavailableError
    from twinbus.errors import BrokerError as BrokerError
    from twinbus.errors import BrokerStartError as BrokerStartError
    from twinbus.errors import CredentialError as CredentialError
    from twinbus.errors import DeadLetterError as DeadLetterError
    from twinbus.errors import EntityUnusableError as EntityUnusableError
    from twinbus.errors import InvalidDestinationError as InvalidDestinationError
    from twinbus.errors import ListenError as ListenError
    from twinbus.errors import MissingDestinationError as MissingDestinationError
    from twinbus.errors import MissingPackageError as MissingPackageError
    from twinbus.errors import MissingRightError as MissingRightError
    from twinbus.errors import NamespaceInUseError as NamespaceInUseError
    from twinbus.errors import PairClosedError as PairClosedError
    from twinbus.errors import PairFaultedError as PairFaultedError
    from twinbus.errors import PairingError as PairingError
    from twinbus.errors import PairNotStartedError as PairNotStartedError
    from twinbus.errors import PartialDivertError as PartialDivertError
    from twinbus.errors import ReservedPropertyError as ReservedPropertyError
    from twinbus.errors import SameNamespaceError as SameNamespaceError
    from twinbus.errors import ScheduleUnavailableError as ScheduleUnavailableError
    from twinbus.errors import ScheduleUnknownError as ScheduleUnknownError
    from twinbus.errors import StoreDamaged as StoreDamaged
    from twinbus.errors import StoreError as StoreError
    from twinbus.errors import StoreFull as StoreFull
    from twinbus.errors import TransactionError as TransactionError
    from twinbus.errors import TransactionRolledBackError as TransactionRolledBackError
    from twinbus.errors import TransactionUnavailableError as TransactionUnavailableError
    from twinbus.errors import TransactionUnknownError as TransactionUnknownError
    from twinbus.errors import TransferError as TransferError
    from twinbus.errors import TwinbusError as TwinbusError
    from twinbus.errors import WrongKeyError as WrongKeyError
    from twinbus.namespace.namespace import Namespace as Namespace
    from twinbus.options import SendAvailabilityOptions as SendAvailabilityOptions
    from twinbus.options import Verdict as Verdict
    from twinbus.options import classify as classify
    from twinbus.pair import Pair as Pair
    from twinbus.pair import pair_namespaces as pair_namespaces
    from twinbus.pairing.lifecycle.closing import PairSide as PairSide
    from twinbus.pairing.observing.events import BacklogQueueFound as BacklogQueueFound
    from twinbus.pairing.observing.events import BacklogQueueLeftOut as BacklogQueueLeftOut
    from twinbus.pairing.observing.events import BacklogQueuePulled as BacklogQueuePulled
    from twinbus.pairing.observing.events import BacklogQueueReturned as BacklogQueueReturned
    from twinbus.pairing.observing.events import EntityChanged as EntityChanged
    from twinbus.pairing.observing.events import EntityHeld as EntityHeld
    from twinbus.pairing.observing.events import EventsDropped as EventsDropped
    from twinbus.pairing.observing.events import EventStream as EventStream
    from twinbus.pairing.observing.events import GuardWarned as GuardWarned
    from twinbus.pairing.observing.events import PairEvent as PairEvent
    from twinbus.pairing.observing.events import PingEnded as PingEnded
    from twinbus.pairing.observing.events import ProtectionChanged as ProtectionChanged
    from twinbus.pairing.observing.events import RightMissing as RightMissing
    from twinbus.pairing.observing.events import SideChanged as SideChanged
    from twinbus.pairing.observing.events import TwinChanged as TwinChanged
    from twinbus.pairing.receiving.processor import Processor as Processor
    from twinbus.pairing.receiving.sources import process as process
    from twinbus.pairing.sending.sender import MessageSender as MessageSender
    from twinbus.pairing.sending.sender import PairedSender as PairedSender
    from twinbus.pairing.transacting.primary_side import PrimarySide as PrimarySide
    from twinbus.pairing.transacting.transaction import Transaction as Transaction
    from twinbus.pairing.transacting.transactions import Transactions as Transactions
    from twinbus.pairing.transacting.transactions import transactions as transactions
    from twinbus.status.document import PairStatus as PairStatus

__version__ = "0.1.0.dev0"

_NAMES = {
    "twinbus.broker.embedded": "EmbeddedBroker",
    "twinbus.broker.faults": "Fault",
    "twinbus.errors": """
        AliasTypeError AliasValueError BacklogFormatError BacklogGuardError
        BacklogMessageTooLargeError BacklogUnavailableError BrokerError BrokerStartError
        CredentialError DeadLetterError EntityUnusableError InvalidDestinationError ListenError
        MissingDestinationError MissingPackageError MissingRightError NamespaceInUseError
        PairClosedError PairFaultedError PairingError PairNotStartedError PartialDivertError
        ReservedPropertyError SameNamespaceError ScheduleUnavailableError ScheduleUnknownError
        StoreDamaged StoreError StoreFull TransactionError TransactionRolledBackError
        TransactionUnavailableError TransactionUnknownError TransferError TwinbusError WrongKeyError
    """,
    "twinbus.namespace.namespace": "Namespace",
    "twinbus.options": "SendAvailabilityOptions Verdict classify",
    "twinbus.pair": "Pair pair_namespaces",
    "twinbus.pairing.observing.events": """
        BacklogQueueFound BacklogQueueLeftOut BacklogQueuePulled BacklogQueueReturned
        EntityChanged EntityHeld EventStream EventsDropped GuardWarned PairEvent PingEnded
        ProtectionChanged RightMissing SideChanged TwinChanged
    """,
    "twinbus.status.document": "PairStatus",
    "twinbus.pairing.lifecycle.closing": "PairSide",
    "twinbus.pairing.receiving.processor": "Processor",
    "twinbus.pairing.receiving.sources": "process",
    "twinbus.pairing.sending.sender": "MessageSender PairedSender",
    "twinbus.pairing.transacting.primary_side": "PrimarySide",
    "twinbus.pairing.transacting.transaction": "Transaction",
    "twinbus.pairing.transacting.transactions": "Transactions transactions",
}
"""Module and names of each public object; the imports above show the same to type checkers."""

_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)

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
