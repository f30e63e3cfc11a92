"""The messages per second that all pumps to one primary may send (docs/guarantees.md).

    ramp:      1,000/s, times 4 for each slice that was answered -----> open: no limit
    trouble:   server-busy, or answers that become slow ----> half of what the primary took
    after it:  up by a 20th of the old rate each second; beyond it, by twice as much each second;
               at four times the old rate it ramps again

Live traffic comes first: a throttling primary refuses everybody, so the syphon stays below the
rate that caused trouble and comes near it for a moment every ten seconds only. A set rate is the
governor's maximum.

Pure: `now` is an argument. The pumps report once for each batch of answers.
"""

from __future__ import annotations

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
        """How many messages a pump may send in one slice."""
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
