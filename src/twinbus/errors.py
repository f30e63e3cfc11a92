"""Every error that Twinbus raises to its users.

    TwinbusError
     +-- BrokerError               the embedded broker
     |    +-- BrokerStartError     it was asked for something it cannot start with
     |    |    +-- ListenError     ... an address
     |    +-- StoreError           its data directory cannot be used, at start or later
     |         +-- StoreFull       ... for want of room
     +-- PairingError              two namespaces as a pair; has `message_ids`
     |    +-- SameNamespaceError           both sides are one and the same namespace
     |    +-- NamespaceInUseError          a Namespace object already belongs to a pair
     |    +-- MissingRightError            a credential lacks a right that pairing needs
     |    +-- PairFaultedError             the pair was faulted; every later call raises this
     |    +-- PairClosedError              the pair, or its primary side, was closed
     |    +-- BacklogUnavailableError      no backlog queue is there, or none takes the message
     |    +-- PartialDivertError           a split batch is stored in part
     |    +-- ScheduleUnavailableError     sequence numbers need the primary, which failed over
     |    +-- EntityUnusableError          the primary answers that the entity is gone or disabled
     |    +-- BacklogGuardError            the message could not be stored in a backlog queue
     |         +-- BacklogMessageTooLargeError     ... for its size
     |         +-- ReservedPropertyError           ... for the name of a property
     +-- ControlError              a running pair or syphon cannot be asked, or refuses
     +-- SyphonError               a backlog cannot be drained as it was asked for
     +-- TransferError             a message that is not in the form of the backlog
          +-- MissingDestinationError      it does not say where it belongs
          +-- InvalidDestinationError      what it names is no queue or topic
          +-- AliasTypeError               one of its aliases has a type that cannot be read
          +-- AliasValueError              one of its aliases has a value that cannot be restored

A broker's refusal of one request (entity not found, lock lost, quota) is no error here: it goes
over the wire, and the client gets the exception of the SDK it uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class TwinbusError(Exception):
    """The root: catch it to catch everything that Twinbus itself raises."""


class BrokerError(TwinbusError):
    """The embedded broker cannot start or go on; the text says which namespace and why."""


class BrokerStartError(BrokerError):
    """The broker cannot start with what it was given; nothing listens, nothing is stored."""


class ListenError(BrokerStartError):
    """An address cannot be listened on: it is taken, or not one of this machine's."""


class StoreError(BrokerError):
    """A data directory cannot be used: unwritable, in use, damaged, or of a newer format.

    What was acknowledged before stays as it is on disk.
    """


class StoreFull(StoreError):
    """The disk has no room for a write. Make room; what was acknowledged before is safe."""


class PairingError(TwinbusError):
    """Two namespaces cannot be, or go on as, a pair, or the pair cannot do what was asked.

    `message_ids` are the ids of the messages of the failed call, empty where there were none.
    Sending them again under these ids lets duplicate detection remove a copy stored unseen.
    """

    def __init__(self, text: str, *, message_ids: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.message_ids = tuple(message_ids)

    def __reduce__(self) -> tuple[object, ...]:
        # An exception is pickled as a call with its text alone, which loses keywords; these cross
        # process borders (a Spark task, a pool) whole.
        return _revived, (type(self), self.args, self.__dict__)


def _revived(
    kind: type[PairingError], args: tuple[object, ...], state: dict[str, object]
) -> PairingError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class SameNamespaceError(PairingError):
    """Both sides are the same endpoint: there would be nowhere to go. Give two namespaces."""


class NamespaceInUseError(PairingError):
    """A Namespace object is part of a pair already. Make another one from the same string."""


class MissingRightError(PairingError):
    """A credential lacks a right; the text names it, the namespace, and the way without it."""


class PairFaultedError(PairingError):
    """A side of the pair was faulted, or was closed and the other did not follow. Pair anew.

    The error that the fault was declared with is its cause.
    """


class PairClosedError(PairingError):
    """The pair, or the side that a call needs, was closed. Make a new pair."""


class BacklogUnavailableError(PairingError):
    """The secondary cannot be used: at pairing because it is required, or no queue took a send.

    `primary_error` is why the send left the primary, `queue_errors` what each backlog queue said.
    """

    def __init__(
        self,
        text: str,
        *,
        message_ids: Sequence[str] = (),
        primary_error: BaseException | None = None,
        queue_errors: Mapping[str, BaseException | str] | None = None,
    ) -> None:
        super().__init__(text, message_ids=message_ids)
        self.primary_error = primary_error
        self.queue_errors = dict(queue_errors or {})


class PartialDivertError(PairingError):
    """A batch had to be split on its way to the backlog, and only a part of it was stored.

    Send those of `not_stored_ids` again; those of `stored_ids` are safe.
    """

    def __init__(
        self, text: str, *, stored_ids: Sequence[str], not_stored_ids: Sequence[str]
    ) -> None:
        super().__init__(text, message_ids=(*stored_ids, *not_stored_ids))
        self.stored_ids = tuple(stored_ids)
        self.not_stored_ids = tuple(not_stored_ids)


class ScheduleUnavailableError(PairingError):
    """Scheduling by sequence number needs the primary, and the entity has failed over.

    A message with `scheduled_enqueue_time_utc` can be sent all the same: it is diverted.
    """


class EntityUnusableError(PairingError):
    """The primary is up and says that the entity is not there or disabled. Repair the entity."""


class BacklogGuardError(PairingError):
    """A backlog queue could not hold this message; what is wrong is the sender's to mend."""


class BacklogMessageTooLargeError(BacklogGuardError):
    """With its aliases the message is larger than a backlog queue takes. Send smaller messages."""

    def __init__(
        self,
        *,
        size_bytes: int,
        overhead_bytes: int,
        limit_bytes: int,
        message_ids: Sequence[str] = (),
    ) -> None:
        super().__init__(
            f"the message has {size_bytes} bytes and its aliases add up to {overhead_bytes}, but a "
            f"backlog queue takes {limit_bytes}; send at most {limit_bytes - overhead_bytes} bytes",
            message_ids=message_ids,
        )
        self.size_bytes = size_bytes
        self.overhead_bytes = overhead_bytes
        self.limit_bytes = limit_bytes


class ReservedPropertyError(BacklogGuardError):
    """An application property has a name that the backlog uses for an alias. Rename it."""

    def __init__(self, name: str, *, message_ids: Sequence[str] = ()) -> None:
        super().__init__(
            f"the application property {name!r} has a name that is reserved for messages in a "
            "backlog queue; give it another name",
            message_ids=message_ids,
        )
        self.name = name


class ControlError(TwinbusError):
    """A running pair or syphon cannot be asked, or refuses; the text says which, and why."""


class SyphonError(TwinbusError):
    """A backlog cannot be drained as it was asked for: no such queue, a right that is missing."""


class TransferError(TwinbusError):
    """A message in a backlog queue that cannot be brought back to where it belongs.

    `reason` is a word for the dead-letter reason, the text its description.
    """

    reason = "NotABacklogMessage"


class MissingDestinationError(TransferError):
    """The message has no `x-ms-path`: nobody can tell where it was sent to."""

    reason = "MissingDestination"


class InvalidDestinationError(TransferError):
    """The `x-ms-path` of the message names no queue or topic; nothing is ever sent there."""

    reason = "InvalidDestination"


class AliasTypeError(TransferError):
    """An alias has a type that means nothing here; the text names the alias and the type."""

    reason = "AliasTypeUnknown"


class AliasValueError(TransferError):
    """An alias has a value that no message can carry; the text names the alias and its limits."""

    reason = "AliasValueInvalid"


def error_text(error: BaseException) -> str:
    """An error's class and text, for logs and for errors that report it."""
    return f"{type(error).__name__}: {error}"
