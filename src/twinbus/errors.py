"""Every error that Twinbus raises to its users.

    TwinbusError
     +-- BrokerError               the embedded broker
     |    +-- BrokerStartError     it cannot start with its options
     |    |    +-- ListenError     ... an address
     |    +-- StoreError           its data directory cannot be used, at start or later
     |         +-- StoreFull       ... because the disk is full
     |         +-- StoreDamaged    ... because its files are not what was stored
     +-- PairingError              two namespaces as a pair; has `message_ids`
     |    +-- SameNamespaceError           both sides are the same namespace
     |    +-- NamespaceInUseError          a Namespace object already belongs to a pair
     |    +-- MissingRightError            a credential lacks a right that pairing needs
     |    |    +-- WrongKeyError           ... or is refused itself: no right mends it
     |    +-- PairNotStartedError          a call came before the pair was started
     |    +-- PairFaultedError             the pair was faulted; every later call raises this
     |    +-- PairClosedError              the pair, or its primary side, was closed
     |    +-- BacklogUnavailableError      there is no backlog queue, or none takes the message
     |    +-- PartialDivertError           a split batch is stored in part
     |    +-- ScheduleUnavailableError     sequence numbers need the primary, which failed over
     |    +-- ScheduleUnknownError         no answer came: a copy may be scheduled
     |    +-- EntityUnusableError          the primary answers that the entity is gone or disabled
     |    +-- BacklogGuardError            the message could not be stored in a backlog queue
     |         +-- BacklogMessageTooLargeError     ... because of its size
     |         +-- ReservedPropertyError           ... because of the name of a property
     +-- TransactionError          an operation that a transaction cannot have
     |    +-- TransactionRolledBackError   nothing of the transaction happened
     |    +-- TransactionUnknownError      no answer came: all of it happened, or nothing
     |    +-- TransactionUnavailableError  it needs the primary, and the entity failed over
     +-- MissingPackageError       a package of an extra is not installed; a ModuleNotFoundError too
     +-- SettingsError             the settings file cannot be used
     +-- CredentialError           a source of credentials cannot be opened or read
     +-- ControlError              a running pair or syphon does not answer, or refuses a command
     +-- SyphonError               a backlog cannot be drained as requested
     +-- DeadLetterError           a handler raises it: its message is moved to the dead letters
     +-- TransferError             a message that is not in the backlog form
          +-- MissingDestinationError      it has no destination
          +-- InvalidDestinationError      its destination is no queue or topic
          +-- AliasTypeError               one of its aliases has an unknown type
          +-- AliasValueError              one of its aliases has a value that cannot be restored
          +-- BacklogFormatError           a later version of Twinbus put it there

A broker's refusal of one request (entity not found, lock lost, quota) is not listed here: it goes
over the wire, and the client gets the exception of the SDK it uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class TwinbusError(Exception):
    """The base class of every error that Twinbus itself raises."""


class BrokerError(TwinbusError):
    """The embedded broker cannot start or go on; the text says which namespace and why."""


class BrokerStartError(BrokerError):
    """The broker cannot start with its options; nothing listens, nothing is stored."""


class ListenError(BrokerStartError):
    """An address cannot be listened on: it is in use, or not one of this machine."""


class StoreError(BrokerError):
    """A data directory cannot be used: unwritable, in use, damaged, or of a newer format.

    Messages acknowledged before are unchanged on disk.
    """


class StoreFull(StoreError):
    """The disk is full. Free space; messages acknowledged before are safe."""


class StoreDamaged(StoreError):
    """The files of a data directory are not what was stored. Put back a copy of the directory."""


class PairingError(TwinbusError):
    """Two namespaces cannot be paired, or the pair cannot do what a call requests.

    `message_ids` are the ids of the messages of the failed call, empty if it had none. Send them
    again under these ids, and duplicate detection removes a copy that was stored after all.
    """

    def __init__(self, text: str, *, message_ids: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.message_ids = tuple(message_ids)

    def __reduce__(self) -> tuple[object, ...]:
        # By default an exception is pickled with its text alone; this keeps its attributes when it
        # crosses processes (a Spark task, a pool).
        return _revived, (type(self), self.args, self.__dict__)


def _revived(
    kind: type[PairingError], args: tuple[object, ...], state: dict[str, object]
) -> PairingError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class SameNamespaceError(PairingError):
    """Both sides have the same endpoint, so there is no second namespace. Give two namespaces."""


class NamespaceInUseError(PairingError):
    """A Namespace object belongs to a pair already. Make another one from the same string."""


class MissingRightError(PairingError):
    """A credential lacks a right, or is refused; the text says which, where, and what to do."""


class WrongKeyError(MissingRightError):
    """The key or its name is wrong: the service refuses the signature. Copy the string again."""


class PairNotStartedError(PairingError):
    """The pair is made and not started yet. Use it as a context manager, or call its `start`."""


class PairFaultedError(PairingError):
    """A side of the pair was faulted, or was closed and the other did not follow. Pair again.

    Its cause is the error that the side was faulted with.
    """


class PairClosedError(PairingError, ValueError):
    """The pair, or the side that a call needs, was closed. Make a new pair.

    A ValueError too, because the SDK raises that for a closed client or sender.
    """


class BacklogUnavailableError(PairingError):
    """The secondary is required and not available at pairing, or no backlog queue took a send.

    `primary_error` is why the send left the primary, `queue_errors` has each backlog queue's error.
    """

    def __init__(
        self,
        text: str,
        *,
        primary_error: BaseException | None = None,
        queue_errors: Mapping[str, BaseException | str] | None = None,
    ) -> None:
        super().__init__(text)
        self.primary_error = primary_error
        self.queue_errors = dict(queue_errors or {})


class PartialDivertError(PairingError):
    """A batch was split on its way to the backlog, and only a part of it was stored.

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

    Send messages with `scheduled_enqueue_time_utc` instead: these are diverted.
    """


class ScheduleUnknownError(PairingError):
    """It is not known whether messages were scheduled, or cancelled, or under which numbers.

    Nothing is repeated: a copy of each message of `message_ids` may be scheduled. Peek at the
    entity to find out, or schedule again if it detects duplicates or a second copy does no harm.
    """


class EntityUnusableError(PairingError):
    """The primary answers that the entity is missing or disabled. Repair the entity."""


class BacklogGuardError(PairingError):
    """A backlog queue could not store this message; its sender must change it."""


class BacklogMessageTooLargeError(BacklogGuardError):
    """With its aliases the message exceeds the limit of a backlog queue. Send smaller messages."""

    def __init__(self, *, size_bytes: int, overhead_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"the message has {size_bytes} bytes and its aliases add up to {overhead_bytes}, but a "
            f"backlog queue takes {limit_bytes}; send at most {limit_bytes - overhead_bytes} bytes"
        )
        self.size_bytes = size_bytes
        self.overhead_bytes = overhead_bytes
        self.limit_bytes = limit_bytes


class ReservedPropertyError(BacklogGuardError):
    """An application property has a name that the backlog uses for an alias. Rename it."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the application property {name!r} has a name that is reserved for messages in a "
            "backlog queue; give it another name"
        )
        self.name = name


class TransactionError(TwinbusError):
    """An operation cannot be part of the transaction, which is rolled back; the text says why.

    `message_ids` are the ids of the messages that the transaction was to send, empty if it had
    none.
    """

    def __init__(self, text: str, *, message_ids: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.message_ids = tuple(message_ids)


class TransactionRolledBackError(TransactionError):
    """The transaction could not be committed, and nothing of it happened. Try all of it again.

    Its cause is the operation that failed, or the answer of the namespace. Messages that it was to
    settle are still locked.
    """


class TransactionUnknownError(TransactionError):
    """The answer to the discharge is lost: all of the transaction happened, or nothing of it.

    Receive to find out: messages that it settled come again if it was rolled back. Or send again
    under the ids of `message_ids` to entities that detect duplicates.
    """


class TransactionUnavailableError(TransactionError):
    """A transaction runs on the primary, and an entity of it has failed over.

    Try it again when the entity is healthy, or send without one: that is diverted.
    """


class MissingPackageError(TwinbusError, ModuleNotFoundError):
    """A package of an extra is not installed; the text has the command that installs it."""


class SettingsError(TwinbusError):
    """The settings file, or a value in it, cannot be used; the text names the file and the line."""


class CredentialError(TwinbusError):
    """A source of credentials cannot be opened or read; the text names it and shows no secret."""


class ControlError(TwinbusError):
    """A running pair or syphon does not answer, or refuses a command; the text says why."""


class SyphonError(TwinbusError):
    """A backlog cannot be drained as requested: a queue or a right is missing."""


class DeadLetterError(TwinbusError):
    """Raise this in a handler of a processor to move its message to the dead-letter queue.

    The message gets the reason and the description, each cut to 4,096 characters.
    """

    def __init__(self, reason: str, description: str = "") -> None:
        super().__init__(reason, description)
        self.reason = str(reason)
        self.description = str(description)

    def __str__(self) -> str:
        return f"{self.reason}: {self.description}" if self.description else self.reason


class TransferError(TwinbusError):
    """A message in a backlog queue that cannot be returned to its destination.

    `reason` is the dead-letter reason, the text its description.
    """

    reason = "NotABacklogMessage"


class MissingDestinationError(TransferError):
    """The message has no `x-ms-path`, so its destination is unknown."""

    reason = "MissingDestination"


class InvalidDestinationError(TransferError):
    """The `x-ms-path` of the message names no queue or topic; nothing is ever sent there."""

    reason = "InvalidDestination"


class AliasTypeError(TransferError):
    """An alias has an unknown type; the text names the alias and the type."""

    reason = "AliasTypeUnknown"


class AliasValueError(TransferError):
    """An alias has a value that no message can carry; the text names the alias and its limits."""

    reason = "AliasValueInvalid"


class BacklogFormatError(TransferError):
    """A later version of Twinbus diverted the message; upgrade the syphon, then replay it."""

    reason = "BacklogFormatUnknown"


def error_text(error: BaseException) -> str:
    """An error's class and text, for logs and for errors that report it."""
    # A deadline of asyncio has no text of its own.
    text = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
