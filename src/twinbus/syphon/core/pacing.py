"""How fast a backlog drains: the governor's rate, a pump's part of it, a meter, reconnect delays.

The governor limits the messages per second of all pumps to one primary (docs/guarantees.md):

    ramp:      1,000/s, times 4 for each slice that was answered -----> open: no limit
    trouble:   server-busy, or answers that become slow ----> half of what the primary took
    after it:  up by a 20th of the old rate each second; beyond it, by twice as much each second;
               at four times the old rate it ramps again

Live traffic comes first: a throttling primary refuses everybody, so the syphon stays below the
rate that caused trouble and comes near it for a moment every ten seconds only. A set rate is the
governor's maximum.

    rate = Rate(); pace = Pace(rate)               one rate for a host, one pace for each pump
    pace.allowed("orders", 40, now) -> how many of the 40 may be sent now; the rest waits

A pump reserves the next free slice of time, and may send its messages when it begins. Slices
are reserved in order of request, so pumps with work take turns, and so do the destinations of a
pump. A pump without work reserves nothing.

Pure: `now` is an argument, `wake_at` is when a reserved slice begins, and the pumps report once for
each batch of answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil
from typing import Final

from twinbus.options import SYPHON_RATE_MAX, SYPHON_RATE_MIN

STANDARD_PER_S: Final = 250.0
"""Rate for a Standard namespace, which has 1,000 credits a second. A moved message costs two in the
primary (the syphon's send, the consumer's receive) and at most two in the secondary (receive and
settlement). So 250 messages a second use half of each namespace, and leave half to the
application."""

LOWEST_PER_S: Final = SYPHON_RATE_MIN
HIGHEST_PER_S: Final = SYPHON_RATE_MAX

SLICE_S: Final = 0.1
"""Length of the slice that a pump reserves: long enough to send in groups, short enough that ten
busy pumps each get a slice every second. Also the most unused time that is made up for."""

RAMP_SLICE_S: Final = 0.025
"""The same during a ramp, which must not cost a fast primary much time."""

FIRST_PER_S: Final = 1_000.0
"""Where a ramp begins: what a Standard namespace takes in all."""

RAMP: Final = 4.0
OPEN_PER_S: Final = 30_000.0
"""About what a relay can send: from here on nothing is counted."""

FLOOR_PER_S: Final = 10.0
"""Trouble never slows the syphon below this, so that it finds out when the trouble is over."""

BUSY_CUT: Final = 0.5
SLOW_CUT: Final = 0.7
DEEPEST_CUT: Final = 0.25
"""After the first trouble a cut does not go below this share of the rate, however little of it was
used. The first cut ends a ramp, which may have gone far beyond what the primary takes."""

COOL_S: Final = 0.25
"""Refusals within this time belong to the same overload, and cut the rate once."""

ALONE_S: Final = 1.0
"""A busy primary takes some messages of every entity within this time."""

STEP_S: Final = 1.0
STEP_SHARE: Final = 0.05
"""Growth after trouble: this share of the rate that caused it, for each step."""

USED_SHARE: Final = 0.5
RAMP_USED_SHARE: Final = 0.1
"""A rate that is not used proves nothing: less than this share of it, and it does not grow. A ramp
needs less, so that it ends also where a slow machine is the limit."""

SLOW_S: Final = 0.5
SLOW_TIMES: Final = 3.0
"""Answers are slow beyond this latency, and beyond this multiple of the best one."""

LATENCY_WEIGHT: Final = 0.2
IN_FLIGHT_LEAST: Final = 100
"""With fewer messages in flight the syphon is not what makes the answers slow."""

RAMPS: Final = "it ramps up"
BUSY: Final = "the primary answers that it is busy"
SET: Final = "the rate is set"


def require_rate(per_s: float) -> float:
    """Return a rate that a syphon can keep; ValueError for any other."""
    if not LOWEST_PER_S <= per_s <= HIGHEST_PER_S:
        raise ValueError(
            f"a rate is {LOWEST_PER_S:g} to {HIGHEST_PER_S:,.0f} messages a second; got {per_s:g}"
        )
    return per_s


class Governor:
    """The rate at which one primary may be sent to, as its answers allow."""

    def __init__(self, most_per_s: float | None = None) -> None:
        """`most_per_s` is never exceeded; None: only trouble limits the rate."""
        self.most_per_s = None if most_per_s is None else require_rate(most_per_s)
        self.is_open = False
        """Nothing limits the rate: pumps need not ask."""
        self._ceiling: float | None = None
        """The rate that last caused trouble; None: none is known."""
        self._increment = 0.0
        self._cool_until = self._restarted_at = self._step_from = float("-inf")
        self._used = 0
        """Messages accepted since `_step_from`."""
        self._accepted_at = float("-inf")
        self._latency_s = 0.0
        self._best_s = float("inf")
        self._counting_from = float("-inf")
        self._counted = self._counted_before = 0
        self._set(FIRST_PER_S, RAMPS)

    def __repr__(self) -> str:
        return "<governor, open>" if self.is_open else f"<governor, {self.limit}>"

    @property
    def limit(self) -> str:
        """The rate and why it is limited; empty: it is not."""
        return "" if self.is_open else f"at most {self.per_s:,.0f}/s: {self.limited_by}"

    @property
    def slice_messages(self) -> int:
        slice_s = RAMP_SLICE_S if self.limited_by is RAMPS else SLICE_S
        return max(1, int(self.per_s * slice_s))

    def limit_to(self, most_per_s: float | None) -> None:
        """Change what is never exceeded; a higher rate than the present one is ramped up to."""
        self.most_per_s = None if most_per_s is None else require_rate(most_per_s)
        self._set(self.per_s, RAMPS if self.limited_by is SET else self.limited_by)

    # What the pumps report

    def restart(self, now: float) -> None:
        """Begin a new ramp: the primary came back."""
        if now < self._restarted_at + STEP_S:
            return  # The pumps of a host reconnect one after the other.
        self._restarted_at = now
        self._best_s = float("inf")
        self._latency_s = 0.0
        self._step_from, self._used = now, 0
        if self._ceiling is None:
            self._set(FIRST_PER_S, RAMPS)

    def accepted(self, count: int, latency_s: float, now: float) -> None:
        """Take a batch of answers; `latency_s` is that of its oldest message."""
        self._accepted_at = now
        self._count(count, now)
        self._latency_s += (latency_s - self._latency_s) * LATENCY_WEIGHT
        self._best_s = min(self._best_s, latency_s)
        if self._latency_s > SLOW_S and self._is_slow(now):
            text = f"the primary takes {self._latency_s:.1f} s to answer"
            self._cut(SLOW_CUT, text, 2 * self._latency_s, now)
        elif not self.is_open:
            self._used += count
            self._grow(now)

    def busy(self, now: float, accepted_at: float = float("inf")) -> None:
        """Slow down: the primary refused a message because it is busy.

        `accepted_at` is when the message's entity last took one. An entity that takes none while
        others do is throttled by itself: it is held, and costs the others nothing.
        """
        is_alone = now - self._accepted_at < ALONE_S <= now - accepted_at
        if not is_alone:
            self._cut(BUSY_CUT, BUSY, COOL_S, now)

    def busy_for_others(self, now: float) -> None:
        """Slow down: the primary refused a live call while the pumps use it."""
        if now - self._accepted_at < STEP_S:
            self._cut(BUSY_CUT, BUSY, COOL_S, now)

    # Decisions

    def _is_slow(self, now: float) -> bool:
        in_flight = self._taken_per_s(now) * self._latency_s
        return self._latency_s > SLOW_TIMES * self._best_s and in_flight > IN_FLIGHT_LEAST

    def _cut(self, share: float, why: str, cool_s: float, now: float) -> None:
        if now < self._cool_until:
            return
        taken = self._taken_per_s(now)
        if self._ceiling is not None:
            taken = max(taken, self.per_s * DEEPEST_CUT)
        taken = min(taken, self.per_s)
        self._cool_until = now + max(COOL_S, cool_s)
        self._ceiling = max(taken, FLOOR_PER_S)
        self._increment = self._ceiling * STEP_SHARE
        self._step_from, self._used = now, 0
        self._set(max(FLOOR_PER_S, self._ceiling * share), why)

    def _grow(self, now: float) -> None:
        passed_s = now - self._step_from
        wait_s = max(RAMP_SLICE_S, self._latency_s) if self._ceiling is None else STEP_S
        if passed_s < wait_s:
            return
        share = RAMP_USED_SHARE if self._ceiling is None else USED_SHARE
        is_used = self._used >= share * self.per_s * passed_s
        self._step_from, self._used = now, 0
        if not is_used:
            return
        if self._ceiling is None or self.per_s > RAMP * self._ceiling:
            self._ceiling = None  # So far above it without trouble, it is out of date.
            self._set(self.per_s * RAMP, RAMPS)
            return
        if self.per_s > self._ceiling:
            self._increment *= 2
        self._set(self.per_s + self._increment, self.limited_by)

    def _set(self, per_s: float, why: str) -> None:
        most = self.most_per_s
        self.is_open = most is None and per_s >= OPEN_PER_S
        if self.is_open or (most is not None and per_s >= most):
            self._ceiling = None
            why = SET
        self.per_s = per_s if most is None else min(per_s, most)
        self.limited_by = why

    # What the primary took

    def _count(self, count: int, now: float) -> None:
        if now >= self._counting_from + STEP_S:
            is_next = now < self._counting_from + 2 * STEP_S
            self._counted_before = self._counted if is_next else 0
            self._counted = 0
            self._counting_from = now
        self._counted += count

    def _taken_per_s(self, now: float) -> float:
        """Return the messages accepted in about the last second."""
        passed = min(1.0, (now - self._counting_from) / STEP_S)
        return self._counted + self._counted_before * (1.0 - passed)


IN_MEMORY_S: Final = 2.0
"""How many seconds' worth of messages all pumps together hold in memory. It is far below the usual
lock duration, so that no lock is renewed only because its message waits for a slice."""

IN_MEMORY_MIN: Final = 2
"""For one pump at any rate: one message that the queue delivers, one received by number."""

ANY_NUMBER: Final = 1 << 30


class Rate:
    """The messages per second that all paces together may send, as the governor allows."""

    def __init__(self, most_per_s: float | None = None) -> None:
        """`most_per_s` is never exceeded; None: the primary's answers alone decide."""
        self.governor = Governor(most_per_s)
        self._free_at = float("-inf")
        self.paces: list[Pace] = []

    def __repr__(self) -> str:
        return f"<{self.governor}, {len(self.paces)} paces, free at {self._free_at:.3f}>"

    def reserve(self, count: int, now: float) -> float:
        """Reserve a slice for `count` messages; return when it begins."""
        # Unused time is made up for, but one slice only: no burst after a quiet time.
        starts_at = max(self._free_at, now - SLICE_S)
        self._free_at = starts_at + count / self.governor.per_s
        return starts_at

    def limit_to(self, most_per_s: float | None) -> None:
        """Change the highest rate; slices that were reserved at the old one are given up."""
        self.governor.limit_to(most_per_s)
        self._free_at = float("-inf")
        for pace in self.paces:
            pace.give_up_slice()

    def share(self, pace: Pace) -> int:
        """Return how many messages a pump may have in memory: what it can send in a short time.

        The pumps with work share the rate; a pump without work gets an equal part of all pumps.
        """
        if self.governor.is_open:
            return ANY_NUMBER
        working = sum(other.is_working for other in self.paces)
        parts = working if pace.is_working else len(self.paces)
        return max(IN_MEMORY_MIN, ceil(self.governor.per_s * IN_MEMORY_S / max(1, parts)))


class Pace:
    """One pump's share of a rate."""

    def __init__(self, rate: Rate) -> None:
        self.is_working = False
        """The pump has messages in memory."""
        self.governor = rate.governor
        self._rate = rate
        self._unused = 0
        """Messages of the reserved slice that are not sent yet."""
        self._from = float("-inf")
        self._queue: dict[str, None] = {}
        """The destinations that wait for this pump's next slice, in order."""
        rate.paces.append(self)

    def __repr__(self) -> str:
        return f"<pace, {self._unused} from {self._from:.3f} on, {list(self._queue)} waiting>"

    @property
    def wake_at(self) -> float | None:
        """When the waiting destinations can be served; None: none waits."""
        return self._from if self._queue else None

    @property
    def share(self) -> int:
        """How many messages the pump may have in memory."""
        return self._rate.share(self)

    def leave(self) -> None:
        if self in self._rate.paces:
            self._rate.paces.remove(self)

    def give_up_slice(self) -> None:
        """Make a new reservation at the next request."""
        self._unused, self._from = 0, float("-inf")

    def allowed(self, destination: str, wanted: int, now: float) -> int:
        """Return how many messages may be sent now; if fewer than wanted, the destination waits."""
        if next(iter(self._queue), destination) != destination:
            # Others wait already; asking more often gets no larger share.
            self._queue[destination] = None
            return 0
        # A slice that was reserved before the rate was cut may be too large by now.
        self._unused = min(self._unused, self.governor.slice_messages)
        if not self._unused:
            self._reserve(wanted, now)
        if now < self._from:
            self._queue[destination] = None
            return 0
        self._queue.pop(destination, None)
        count = min(wanted, self._unused)
        self._unused -= count
        if count < wanted:
            # It had its slice: others come first.
            self._queue[destination] = None
        if self._queue and not self._unused:
            self._reserve(wanted - count or 1, now)
        return count

    def _reserve(self, wanted: int, now: float) -> None:
        self._unused = min(wanted, self.governor.slice_messages)
        self._from = self._rate.reserve(self._unused, now)

    def next_destination(self) -> str | None:
        """Return the destination to serve next."""
        return next(iter(self._queue), None)

    def remove(self, destination: str) -> None:
        self._queue.pop(destination, None)


DRAIN_WINDOW_S: Final = 30
"""Window of the rate: long enough to be steady, short enough to show a standstill."""

DRAIN_LEAST_S: Final = 1.0
"""Shortest span to divide by, so that a first batch does not count as a rate."""


class DrainMeter:
    """Counts the messages that leave a backlog, for each second of the window."""

    def __init__(self) -> None:
        self._began_at: float | None = None
        self.seconds: deque[list[int]] = deque(maxlen=DRAIN_WINDOW_S)
        """Each second in which messages left, and how many."""

    def moved(self, count: int, now: float) -> None:
        if self._began_at is None:
            self._began_at = now
        if not count:
            return
        second, seconds = int(now // 1), self.seconds
        if seconds and seconds[-1][0] == second:
            seconds[-1][1] += count
        else:
            seconds.append([second, count])

    def per_s(self, now: float) -> float:
        """Return the messages per second over the window, or since the first call if shorter."""
        if self._began_at is None:
            return 0.0
        first = int(now // 1) - DRAIN_WINDOW_S
        moved = sum(count for second, count in self.seconds if second > first)
        # The present second is not over, and the first one of the window counts as a whole.
        span_s = min(now - self._began_at, DRAIN_WINDOW_S - 1 + now % 1)
        return moved / max(DRAIN_LEAST_S, span_s)


def time_to_empty_s(waiting: int, per_s: float) -> float | None:
    """Return how long the rest takes at that rate; None: nothing moves."""
    if waiting <= 0:
        return 0.0
    return waiting / per_s if per_s > 0 else None


FIRST_RECONNECT_S: Final = 0.5
LONGEST_RECONNECT_S: Final = 5.0
"""Maximum reconnect delay after recovery."""

LONGEST_MISSING_S: Final = 60.0
"""The same while the namespace answers that the backlog queue does not exist: it may be gone for
good, and a queue that is made again is served within this time."""

RECONNECT_JITTER: Final = 0.5
"""Up to this share of a delay is left out by chance, so that clients do not come back together."""


class ReconnectBackoff:
    """Delays that double, and start over once a connection has lasted for a while."""

    def __init__(self, draw: Callable[[], float]) -> None:
        """`draw` returns random numbers from 0 to 1."""
        self._draw = draw
        self._pause_s = 0.0

    def after(self, held_s: float, *, is_missing: bool = False) -> float:
        """Return the delay after a connection (or an attempt) that lasted `held_s` seconds.

        `is_missing`: it ended because the queue does not exist.
        """
        is_new = held_s > LONGEST_RECONNECT_S
        grown_s = FIRST_RECONNECT_S if is_new else max(FIRST_RECONNECT_S, self._pause_s * 2)
        self._pause_s = min(grown_s, LONGEST_MISSING_S if is_missing else LONGEST_RECONNECT_S)
        return self._pause_s * (1 - RECONNECT_JITTER * self._draw())
