"""Limits and units of Service Bus: durations, dates, lengths, sizes by tier."""

from __future__ import annotations

from typing import Final

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

PREMIUM_MESSAGE_BYTES: Final = 1_024 * 1_024
"""Largest message of the Premium tier, for an entity that does not set another limit."""

PROPERTIES_BYTES_MAX: Final = 64 * 1_024
"""Properties of a message, system and application together."""

BATCH_ALLOWANCE: Final = 64 * 1_024
"""Bytes that a batch may have beyond the limit of its messages, at a service and at the broker."""
