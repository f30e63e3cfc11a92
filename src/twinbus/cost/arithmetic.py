"""Counts operations, models what a pair adds to the bill (docs/costs.md), and parses quantities.

    an operation               one unit for each started 64 KiB of its message, at least one
    an idle syphon             one receive for each backlog queue and poll: 10 queues polled for
                               15 minutes are 40 an hour, 960 a day, 28,800 in 30 days
    a message by the backlog   four stages: send to the backlog, receive from it, send to the
                               primary, receive there; with settlement counted, six
    any other message          two stages: send, receive; with settlement counted, three; also one
                               that is diverted to a twin and received there
    a waiting receiver         none: the frames that check its link are not billed
    a long handler             one renewal of the lock at each half of its duration
    twins                      each client reads their marks every 4 to 5 minutes, up to ten one by
                               one, else by listing queues and topics; a receiver of one reads its
                               mark once; the syphon looks for topics every hour
    a syphon, idle or not      one search for deferred messages in each queue every hour, one for
                               new queues every 15 minutes
    a lease                    one renewal every 80 s; a standby tries to get each every 25 s
    the notice board           each host looks every 15 minutes; in an outage every 12 s, and it
                               posts once a minute at most
    a missing backlog queue    each client searches for it: one listing, and one call to create each
                               queue that is missing; while none is missing there is no search

Azure does not publish whether it charges the settlement of a lock, hence the switch.

Quantities are parsed exactly, to fractions and whole bytes:

    rate       500/s   30000/min   2M/day   0.5/h   a bare number is per second; k, M, G are
               powers of 1000
    size       2KB   64KiB   1.5 MB   700   KB and KiB both are 1024 bytes, MB and GB powers of it,
               as Service Bus means them where it bills by 64 KB and takes 256 KB; a bare number is
               bytes
    duration   250ms   60s   40min   1h30min   2 d   a bare number is seconds
    frequency  2/year   1/month   how often something happens, by a year of 365 days
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from twinbus.errors import TwinbusError

KB: Final = 1_024
"""Bytes of a KB, as in the 64 KB of a billed unit and the 256 KB of a Standard message."""

HOUR_S: Final = 3_600
DAY_S: Final = 86_400
YEAR_S: Final = 365 * DAY_S

RATE_MAX_PER_S: Final = 10_000_000
"""Ten thousand Standard namespaces at their limit."""

SIZE_MAX_BYTES: Final = 100 * KB * KB
"""Maximum message size of Service Bus (Premium)."""

DURATION_MAX_S: Final = YEAR_S
FREQUENCY_MAX_PER_YEAR: Final = 365 * 24

_NUMBER: Final = r"(\d{1,15}(?:\.\d{1,15})?|\.\d{1,15})"
"""Plain digits, bounded so that a number cannot exhaust memory."""

_RATE: Final = re.compile(rf"{_NUMBER}\s*([kKMG]?)\s*(?:/\s*(\w+))?", re.ASCII)
_SIZE: Final = re.compile(rf"{_NUMBER}\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_FREQUENCY: Final = re.compile(rf"{_NUMBER}\s*/\s*(\w+)", re.ASCII)
_PART: Final = re.compile(rf"\s*{_NUMBER}\s*([a-z]+)\s*", re.ASCII | re.IGNORECASE)

_THOUSANDS: Final[Mapping[str, int]] = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}

_SIZES: Final[Mapping[str, int]] = {
    name: KB**power
    for power, names in enumerate((("", "b"), ("kb", "kib"), ("mb", "mib"), ("gb", "gib")))
    for name in names
}

_PERIODS_S: Final[Mapping[str, Fraction]] = {
    name: seconds
    for names, seconds in (
        ("ms", Fraction(1, 1000)),
        ("s sec second seconds", Fraction(1)),
        ("m min minute minutes", Fraction(60)),
        ("h hour hours", Fraction(HOUR_S)),
        ("d day days", Fraction(DAY_S)),
        ("w week weeks", Fraction(7 * DAY_S)),
        ("month months", Fraction(YEAR_S, 12)),
        ("y year years", Fraction(YEAR_S)),
    )
    for name in names.split()
}


class QuantityError(TwinbusError, ValueError):
    """A rate, a size or a duration cannot be read or is out of its range; the text says which."""


def parse_rate(text: str, name: str = "rate", *, most: int = RATE_MAX_PER_S) -> Fraction:
    """Return messages per second: more than 0, at most `most`."""
    form = "a number and a time, like 500/s, 30000/min or 2M/day"
    found = _matched(_RATE, text, name, form)
    number, thousands, period = found.groups()
    seconds = _PERIODS_S.get((period or "s").lower())
    if seconds is None:
        raise _invalid(text, name, form)
    per_s = Fraction(number) * _THOUSANDS[thousands] / seconds
    if not 0 < per_s <= most:
        raise QuantityError(
            f"{name} must be more than 0 and at most {most:,} a second; got {text!r:.60}"
        )
    return per_s


def parse_size(text: str, name: str = "size", *, most: int = SIZE_MAX_BYTES) -> int:
    """Return bytes from 0 to `most`, rounded up."""
    form = "a number and B, KB or MB, like 2KB or 64KiB"
    number, unit = _matched(_SIZE, text, name, form).groups()
    if unit.lower() not in _SIZES:
        raise _invalid(text, name, form)
    exact = Fraction(number) * _SIZES[unit.lower()]
    size_bytes = -(-exact.numerator // exact.denominator)
    if size_bytes > most:
        raise QuantityError(f"{name} must be at most {most:,} bytes; got {text!r:.60}")
    return size_bytes


def parse_duration(
    text: str, name: str = "duration", *, least: float = 0, most: float = DURATION_MAX_S
) -> Fraction:
    """Return seconds from `least` to `most`."""
    form = "a number and ms, s, min, h or d, like 60s, 40min or 1h30min"
    seconds, at = Fraction(0), 0
    stripped = text.strip()
    if bare := re.fullmatch(_NUMBER, stripped, re.ASCII):
        seconds, at = Fraction(bare[1]), len(stripped)
    while at < len(stripped):
        part = _PART.match(stripped, at)
        if part is None or part[2].lower() not in _PERIODS_S:
            raise _invalid(text, name, form)
        seconds += Fraction(part[1]) * _PERIODS_S[part[2].lower()]
        at = part.end()
    if not stripped:
        raise _invalid(text, name, form)
    if not least <= seconds <= most:
        bounds = f"from {float(least):,.10g} to {float(most):,.10g} seconds"
        raise QuantityError(f"{name} must be {bounds}; got {text!r:.60}")
    return seconds


def parse_frequency(text: str, name: str = "frequency") -> Fraction:
    """Return times per year, from 0 to one an hour."""
    form = "a number and a time, like 2/year or 1/month"
    number, period = _matched(_FREQUENCY, text, name, form).groups()
    seconds = _PERIODS_S.get(period.lower())
    if seconds is None:
        raise _invalid(text, name, form)
    per_year = Fraction(number) * YEAR_S / seconds
    if per_year > FREQUENCY_MAX_PER_YEAR:
        most = f"{FREQUENCY_MAX_PER_YEAR:,}"
        raise QuantityError(f"{name} must be at most {most} a year; got {text!r:.60}")
    return per_year


def _matched(pattern: re.Pattern[str], text: str, name: str, form: str) -> re.Match[str]:
    found = pattern.fullmatch(text.strip())
    if found is None:
        raise _invalid(text, name, form)
    return found


def _invalid(text: str, name: str, form: str) -> QuantityError:
    if re.match(r"\s*-\s*[\d.]", text):
        return QuantityError(f"{name} must not be negative; got {text!r:.60}")
    return QuantityError(f"{name} must be {form}; got {text!r:.60}")


UNIT_BYTES: Final = 64 * 1024
"""Maximum bytes of one billed operation."""

SETTLEMENTS: Final = frozenset({"complete", "abandon", "release", "defer", "dead_letter"})
"""Operations that end a lock; the rule decides whether they are charged."""

UNCHARGED: Final = frozenset({"action", "state", "writer"})
"""Ledger records that are no call to a namespace."""

CHARGED_THOUGH_FAILED: Final = frozenset({"ping"})
"""Operations that are counted although they failed. Whether a ping that was not answered reached
the service is mostly not known, and an outage has many: the estimate, the report and the page count
each one, as the upper bound."""

MOVED: Final = (4, 2)
DIRECT: Final = (2, 1)
"""Stages and settlements of a message by the backlog, and of any other."""

SEARCH_S: Final = 60.0
SEARCH_LONGEST_S: Final = 300.0
SEARCH_SLOW_DOWN: Final = 60.0
SEARCH_JITTER: Final = 0.2
"""The waits between two searches, as `pairing.core.secondary` has them."""


DEFERRED_SEARCH_S: Final = 3_600
QUEUE_SEARCH_S: Final = 900
LEASE_RENEW_S: Final = 80
LEASE_STANDBY_S: Final = 25
"""Times between the requests of a syphon that moves nothing, as `twinbus.syphon` has them."""

BOARD_LOOK_S: Final = 900
BOARD_OUTAGE_LOOK_S: Final = 12
BOARD_POST_S: Final = 60
"""Mean times between two looks of a healthy host at the notice board, between two in an outage, and
between two posts, as `twinbus.fleet` has them."""

TWIN_MARK_S: Final = 240
TWIN_MARKS_SINGLE_MAX: Final = 10
TWIN_TOPICS_S: Final = 3_600
"""Least time between two readings of the marks of twins, how many are read one by one, and the time
between two searches of a syphon for topics that are twins."""

LIST_PAGE: Final = 100
"""Entities in one answer to a listing."""

RECEIVER_CHECK_S: Final = 30
"""The least time between two checks of a receiver's link that brings nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CountingRule:
    """Which operations are counted where the published rules leave a choice."""

    count_settlement: bool = False
    """Count complete, abandon, release, defer and dead-letter as operations of their own."""


def is_charged(operation: str, outcome: str) -> bool:
    """Return whether an operation with that outcome is counted; what Azure does is not known."""
    return outcome != "failed" or operation in CHARGED_THOUGH_FAILED


def units(size_bytes: int | None) -> int:
    """Return the billed units of one operation: one for each started 64 KiB, at least one."""
    return max(1, -(-(size_bytes or 0) // UNIT_BYTES))


def message_units(size_bytes: int, rule: CountingRule | None = None, *, moved: bool = False) -> int:
    """Return the units of one message from sender to receiver; `moved`: by the backlog.

    A settlement carries no message, so it is one unit.
    """
    stages, settlements = MOVED if moved else DIRECT
    settled = rule is not None and rule.count_settlement
    return stages * units(size_bytes) + (settlements if settled else 0)


def idle_syphon_operations(
    *, queue_count: int, poll_s: float | Fraction, period_s: float | Fraction
) -> int:
    """Return the receives of an idle syphon in `period_s`: one for each queue and poll."""
    assert poll_s > 0, f"a poll of {poll_s} s"
    return queue_count * int(period_s // poll_s)


def lease_operations(
    *, queue_count: int, standby_count: int = 0, period_s: float | Fraction
) -> int:
    """Return the requests for leases in `period_s`, the start and the end included.

    The holder and each standby read the lock duration once. The holder accepts a session for each
    queue, reads and writes its mark, renews it, and writes the mark again when it stops; each
    standby tries to accept it.
    """
    held = 1 + queue_count * (4 + int(period_s // LEASE_RENEW_S))
    return held + standby_count * (1 + queue_count * (1 + int(period_s // LEASE_STANDBY_S)))


def board_operations(*, host_count: int, period_s: float | Fraction) -> int:
    """Return the looks of healthy hosts at the notice board, the first ones included."""
    return host_count * (1 + int(period_s // BOARD_LOOK_S))


def board_outage_operations(*, host_count: int, outage_s: float | Fraction) -> int:
    """Return the looks and posts of an outage, at most."""
    return host_count * (int(outage_s // BOARD_OUTAGE_LOOK_S) + int(outage_s // BOARD_POST_S))


def deferred_search_operations(*, queue_count: int, period_s: float | Fraction) -> int:
    """Return the searches for deferred messages in `period_s`, the first one included."""
    return queue_count * (1 + int(period_s // DEFERRED_SEARCH_S))


def queue_search_operations(*, syphon_count: int = 1, period_s: float | Fraction) -> int:
    """Return how often syphons list the backlog queues in `period_s`, the first time included."""
    return syphon_count * (1 + int(period_s // QUEUE_SEARCH_S))


def idle_operations(
    *, queue_count: int, poll_s: float | Fraction, period_s: float | Fraction
) -> int:
    """Return all operations of a syphon without leases that moves nothing: polls and searches."""
    polls = idle_syphon_operations(queue_count=queue_count, poll_s=poll_s, period_s=period_s)
    deferred = deferred_search_operations(queue_count=queue_count, period_s=period_s)
    return polls + deferred + queue_search_operations(period_s=period_s)


def renewals(handling_s: float | Fraction, lock_s: float | Fraction) -> int:
    """Return how often the lock of a message is renewed while it is handled for that time."""
    assert lock_s > 0, f"a lock of {lock_s} s"
    halves = Fraction(handling_s) / (Fraction(lock_s) / 2)
    return max(0, -(-halves.numerator // halves.denominator) - 1)


def twin_mark_operations(
    *, twin_count: int, client_count: int, receiver_count: int = 0, period_s: float | Fraction
) -> int:
    """Return the requests for the marks of twins in `period_s`, the first ones included.

    All twins may be queues or topics: both are listed, in pages.
    """
    single = twin_count <= TWIN_MARKS_SINGLE_MAX
    requests = twin_count if single else 1 + -(-twin_count // LIST_PAGE)
    return client_count * requests * (1 + int(period_s // TWIN_MARK_S)) + receiver_count


def twin_topic_operations(*, syphon_count: int = 1, period_s: float | Fraction) -> int:
    """Return how often syphons look for topics that are twins, while none is one."""
    return syphon_count * (1 + int(period_s // TWIN_TOPICS_S))


def receiver_checks(*, receiver_count: int, side_count: int, period_s: float | Fraction) -> int:
    """Return how often at most the links of receivers are checked; no check is an operation."""
    return receiver_count * side_count * int(period_s // RECEIVER_CHECK_S)


def search_count(period_s: float | Fraction) -> int:
    """Return how often at most a client searches in `period_s` for a queue that stays missing."""
    at, count = 0.0, 0
    while True:
        wait_s = max(SEARCH_S, min(SEARCH_LONGEST_S, at / SEARCH_SLOW_DOWN))
        # The shortest that chance makes of it.
        at += wait_s * (1.0 - SEARCH_JITTER)
        if at > period_s:
            return count
        count += 1


def search_operations(*, missing_count: int, client_count: int, period_s: float | Fraction) -> int:
    """Return the administration calls of all clients for queues that stay missing, at most."""
    if not missing_count:
        return 0
    return client_count * search_count(period_s) * (1 + missing_count)


def ping_operations(
    *,
    entity_count: int,
    client_count: int,
    interval_s: float | Fraction,
    outage_s: float | Fraction,
) -> int:
    """Return the pings of an outage: each client pings each failed-over entity every interval."""
    assert interval_s > 0, f"a ping interval of {interval_s} s"
    return entity_count * client_count * int(outage_s // interval_s)
