"""Names and limits in Service Bus: durations, sizes by tier, paths of entities, annotations.

Only a path that passes `is_entity_name` addresses a queue or a topic. A backlog message is foreign
input (docs/security.md): a path with a `$` segment addresses a node that carries out requests with
the rights of the syphon, nothing can be sent to a subscription, and an absolute address names
another namespace. So the rule lists the characters of a name and allows no others.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

FOREVER_MS: Final = 922_337_203_685_477
"""TimeSpan.MaxValue (10,675,199 days), which stands for "never" and is never added to a time. Azure
prints it as P10675199DT2H48M5.4775807S."""

TICKS_PER_MS: Final = 10_000
"""A tick of .NET is 100 nanoseconds."""

EPOCH_TICKS: Final = 621_355_968_000_000_000
"""The unix epoch in ticks since the year 1."""

DATE_MIN_MS, DATE_MAX_MS = -62_135_596_800_000, 253_402_300_799_999
"""First and last millisecond of the years 1 to 9999, as System.DateTime has them. Python has no
other date either; a receiver of one may close the connection instead of refusing the message."""

DETECTION_MAX_S: Final = 7 * 86_400.0
"""Longest history of duplicate detection."""

SESSION_ID_MAX: Final = 128
MESSAGE_ID_MAX: Final = 128
"""Characters of a session id and of a message id."""

STANDARD_MESSAGE_BYTES: Final = 256 * 1_024
"""Largest message of the Standard tier, the smallest limit of any."""

PREMIUM_BATCH_BYTES: Final = 1_024 * 1_024
"""Largest batch of the Premium tier, whose messages may be larger."""

BATCH_LIMIT: Final = "com.microsoft:max-message-batch-size"
"""Property of a link with the largest batch that it takes; not every service has it."""

PROPERTIES_BYTES_MAX: Final = 64 * 1_024
"""Properties of a message, system and application together."""

BATCH_ALLOWANCE: Final = 64 * 1_024
"""Bytes that a batch may have beyond the limit of its messages, at a service and at the broker."""

BATCH_MESSAGES_MAX: Final = 4_500
"""Messages of one batch: as many as Azure Standard takes and the .NET SDK puts into one."""


ENTITY_NAME_MAX: Final = 260
"""Characters of a path of a queue or topic."""

CHILD_NAME_MAX: Final = 50
"""Characters of the name of a subscription or a rule."""

SUBSCRIPTIONS: Final = "Subscriptions"
DEAD_LETTER: Final = "$DeadLetterQueue"
TRANSFER_DEAD_LETTER: Final = f"$Transfer/{DEAD_LETTER}"
MANAGEMENT_SUFFIX: Final = "/$management"
"""Ends the address of an entity's node for requests."""

BACKLOG_MARK: Final = "/x-servicebus-transfer/"
"""Between label and index in a backlog queue's path, as the retired .NET library named them."""

BOARD_MARK: Final = "x-twinbus-board"
"""Ends the path of the notice board, a queue in the secondary (docs/production.md)."""

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
"""A service that knows pings recognizes them by this and delivers none to a receiver."""

DEAD_LETTER_SOURCE: Final = "x-opt-deadletter-source"
ENQUEUED_SEQUENCE_NUMBER: Final = "x-opt-enqueue-sequence-number"
ENQUEUED_TIME: Final = "x-opt-enqueued-time"
LOCK_TOKEN: Final = "x-opt-lock-token"  # noqa: S105  # the name of an annotation
LOCKED_UNTIL: Final = "x-opt-locked-until"
MESSAGE_STATE: Final = "x-opt-message-state"
PARTITION_KEY: Final = "x-opt-partition-key"
SCHEDULED_TIME: Final = "x-opt-scheduled-enqueue-time"
SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
"""Annotations of a message."""

TIME_SPAN: Final = "com.microsoft:timespan"
DATE_TIME: Final = "com.microsoft:datetime-offset"
"""Descriptors of .NET values in properties; both values are ticks."""

TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"
"""Property of a sender link: the entity that gets what is sent through the link's own."""

SESSION_FILTER: Final = "com.microsoft:session-filter"
SESSION_LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"
"""Filter of a link that receives one session, and the link property with the end of its lock."""

# Azure names these characters when it refuses a path, and no rule for the first and the last:
# MassTransit has topics there that end in '--'.
_SEGMENT: Final = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~-]+"
_LATER_SEGMENT: Final = rf"(?!(?i:{SUBSCRIPTIONS})(?:/|\Z)){_SEGMENT}"
# Without re.ASCII the letters in any case would include U+017F and U+212A.
_BELOW_ENTITY: Final = re.compile(rf"/\$|/{SUBSCRIPTIONS}/", re.IGNORECASE | re.ASCII)
_ENTITY: Final = re.compile(rf"{_SEGMENT}(?:/{_LATER_SEGMENT})*", re.ASCII)

ENTITY_NAME_RULE: Final = (
    "use letters, digits, '.', '-', '_', '~' and single '/' between parts, no part '.' or '..',"
    f" and no part '{SUBSCRIPTIONS}' after the first"
)


def utc_of_ms(at_ms: object) -> datetime | None:
    """A time in milliseconds since 1970; None if the value, which a peer sent, is no such time."""
    if not isinstance(at_ms, int) or not DATE_MIN_MS <= at_ms <= DATE_MAX_MS:
        return None
    return datetime.fromtimestamp(at_ms / 1_000, UTC)


def utc_of_ticks(ticks: object) -> datetime | None:
    """A time in ticks since the year 1; None if the value, which a peer sent, is no such time."""
    return utc_of_ms((ticks - EPOCH_TICKS) // TICKS_PER_MS) if isinstance(ticks, int) else None


def is_entity_name(path: str) -> bool:
    return len(path) <= ENTITY_NAME_MAX and _ENTITY.fullmatch(path) is not None


def not_an_entity_name(path: str) -> str:
    """The text of an error about a path that no entity can have."""
    wrong = ENTITY_NAME_RULE
    if len(path) > ENTITY_NAME_MAX:
        wrong = f"{len(path)} characters; the limit is {ENTITY_NAME_MAX}"
    return f"{path!r:.280} is not the path of a queue or topic: {wrong}"


def subscription_path(topic: str, name: str) -> str:
    return f"{topic}/{SUBSCRIPTIONS}/{name}"


def entity_of(path: str) -> str:
    """The queue or topic that has a subscription, a dead-letter queue or a node of this path."""
    return _BELOW_ENTITY.split(path, maxsplit=1)[0]


def dead_letter_path(path: str) -> str:
    return f"{path}/{DEAD_LETTER}"


def transfer_dead_letter_path(path: str) -> str:
    """The path under which Azure keeps what an entity could not forward."""
    return f"{path}/{TRANSFER_DEAD_LETTER}"


ADDRESS_MAX = 8_192
"""Characters of an address that is taken apart: no entity has a longer one, every letter quoted.
`urlsplit` keeps the last 128 that it saw, whole."""


def entity_address(address: str) -> str:
    """The path of an AMQP address: `amqps://host:5672/orders`, `/orders` and `orders` are one."""
    if "://" in address and len(address) <= ADDRESS_MAX:
        try:
            address = unquote(path_of(urlsplit(address)))
        except ValueError:
            return address  # Not an address at all, such as amqps://[x; no entity is found by it.
    return address.strip("/")


def path_of(address: SplitResult) -> str:
    """The path of an address, still quoted.

    The JavaScript SDK appends the path to the whole Endpoint of a connection string, and so behind
    the label that an embedded broker puts after `#`. An address with a path of its own has that.
    """
    if address.path.strip("/"):
        return address.path
    return address.fragment.partition("/")[2].partition("?")[0]


def address_key(address: str) -> str:
    """The lookup key of an address, in any letter case."""
    return entity_address(address).lower()


def backlog_paths(label: str, count: int) -> tuple[str, ...]:
    return tuple(f"{label}{BACKLOG_MARK}{index}" for index in range(count))


def board_path(label: str) -> str:
    """The notice board of the pairs of a primary."""
    return f"{label}/{BOARD_MARK}"


def parse_backlog_path(path: str) -> tuple[str, int] | None:
    """Label and index of a backlog queue's path; None: it is another path."""
    label, mark, index = [*path.rsplit("/", 2), "", ""][:3]
    # Only the form that we write: "07" and "+7" are queues of another application.
    is_ours = f"/{mark.lower()}/" == BACKLOG_MARK and index.isdecimal() and index == str(int(index))
    return (label, int(index)) if label and is_ours else None
