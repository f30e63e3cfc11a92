"""When a host reads the notice board and posts on it, so that a fleet never crowds the secondary.

A host does not know how many others there are: only hosts with an entity that failed over post.
So each behaves as one of `HOSTS_MAX` (docs/costs.md). It spends an allowance of credits, which a
post and each message that it reads take from: together at most a tenth of what a Standard namespace
has. First looks and first posts are spread by chance, because a blip makes all hosts SUSPECT at
once.

    turns.update(suspects, speaks, watches, now, chance)    whenever a state has changed
    turn = turns.take(others, now, chance)                  at `due_at`
    turns.looked(found, now, chance)                        what the look found
    if turn.post and turns.may_post(others, now, chance): ...   then turns.posted(now, chance)

A host is silent while it has read the same from enough others, so that a board with a thousand
readers holds a few messages. Pure: times and chances are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass
from typing import Final

HOSTS_MAX: Final = 1_000
"""Hosts of the largest fleet for which the shares below hold."""

NAMESPACE_CREDITS_PER_S: Final = 1_000
"""Of a Standard namespace: a message that is sent or peeked takes one (docs/broker.md)."""

LASTING_SHARE: Final = 0.1
"""What a fleet takes of them at most, as long as an outage lasts."""

FIRST_MINUTE_SHARE: Final = 0.25
"""What it takes at most in the minute in which all hosts are SUSPECT."""

PEAK_SHARE: Final = 0.45
"""What it takes at most in any ten seconds, with the default quorum: all hosts fail over together,
and each reads what the first of them have posted."""

CREDITS_PER_S: Final = 0.9 * LASTING_SHARE * NAMESPACE_CREDITS_PER_S / HOSTS_MAX
"""The allowance of one host. The rest of the share is for what it has saved when an outage
begins."""

START_S: Final = 2.0
"""Spread of the look of a pair that starts: in an outage its first send needs what it finds."""

FIRST_LOOK_S: Final = 8.0
"""Spread of the first look of a host that turns SUSPECT. A quorum that is there is found within
10 s, with the time of the answer."""

FIRST_POST_S: Final = 4.0
"""Spread of the first post about an entity. Most hosts come late in it: of a thousand only a few
post before the others read it, and a single one waits no longer than this."""

SUSPECT_LOOK_S: Final = 5.0
"""Between two looks of a SUSPECT host, as long as what it has saved lasts; also if there was more
than the last one could read, because then all hosts may want to read more."""

LOOK_EVERY_S: Final = 12.0
"""Between two looks of a host with an entity that has failed over."""

HEALTHY_LOOK_S: Final = 900.0
"""Between two looks of a healthy host: they find out whether the board can be used."""

POST_EVERY_MIN_S, POST_EVERY_MAX_S = 30.0, 60.0
"""A host posts once in each failover interval, within these limits: evidence that is older than
some minutes must not fail anything over."""

LIVES_FOR_POSTS: Final = 3.0
"""Time to live of a post, in posting intervals: one post that failed is no gap."""

TIME_TO_LIVE_MAX_S: Final = LIVES_FOR_POSTS * POST_EVERY_MAX_S

SAVED_MIN: Final = 12.0
"""Credits that a host saves while it is healthy, for its first minute of an outage."""

LOOK_MAX: Final = 20
"""Messages of one look. A larger quorum is collected in several looks."""

FAILED_S, FAILED_MAX_S = 15.0, 300.0
"""Pauses after looks and posts that failed: each twice as long as the one before."""

REFUSED_S: Final = 900.0
"""Pause while there is no board, or no right to it."""

JITTER: Final = 0.25
"""Share by which intervals are longer or shorter, by chance."""


@dataclass(frozen=True, slots=True)
class BoardTurn:
    """What a host does on the board now."""

    look: int
    """Messages to read at most; reading comes first."""
    post: bool
    """Whether a post is due, if `may_post` then agrees."""


class BoardTurns:
    """The times of one host, and its allowance."""

    def __init__(
        self, *, failover_interval_s: float, quorum: int, now: float, chance: float
    ) -> None:
        self.post_every_s = min(max(failover_interval_s, POST_EVERY_MIN_S), POST_EVERY_MAX_S)
        self._quorum = min(quorum, LOOK_MAX)
        # One more than a quorum, because a message of one's own does not count for its host.
        self._enough = quorum + 1
        self._credits_max = max(SAVED_MIN, self._quorum + 2.0)
        self._credits, self._counted_at = self._credits_max, now
        self._asked = 0
        self._is_all_read = True
        """Whether the last look found all that was there."""
        self._posted_at = -math.inf
        self._look_at = self._regular_at = now + chance * START_S
        self._post_at = math.inf
        self._blocked_until = -math.inf
        self._look_pause, self._post_pause = _Pause(), _Pause()
        self._suspects: Set[str] = frozenset()
        self._speaks: Set[str] = frozenset()
        self._watches = False

    def __repr__(self) -> str:
        return f"<turns: look at {self._look_at:.1f}, post at {self._post_at:.1f}>"

    @property
    def time_to_live_s(self) -> float:
        """Time to live of this host's posts."""
        return self.post_every_s * LIVES_FOR_POSTS

    @property
    def silent_s(self) -> float:
        """How long a host that is silent does not post, at most."""
        return self.post_every_s * (1.0 + JITTER)

    @property
    def due_at(self) -> float:
        """When to call `take`."""
        return max(min(self._look_at, self._post_at), self._blocked_until, self._affordable_at())

    def update(
        self,
        *,
        suspects: Set[str],
        speaks: Set[str],
        watches: bool,
        now: float,
        chance: float,
    ) -> None:
        """Take the host's present states.

        `suspects`: its entities that are SUSPECT. `speaks`: those that failed over by their own
        interval. `watches`: whether any has failed over, and waits for a recovery.
        """
        if suspects - self._suspects:
            self._look_at = min(self._look_at, now + chance * FIRST_LOOK_S)
        elif not suspects:
            if watches and not self._watches:
                self._regular_at = min(self._regular_at, now + _about(LOOK_EVERY_S, chance))
            self._look_at = self._regular_at
        if speaks - self._speaks:
            self._post_at = min(self._post_at, now + math.sqrt(chance) * FIRST_POST_S)
        elif not speaks:
            self._post_at = math.inf
        self._suspects, self._speaks, self._watches = suspects, speaks, watches

    def take(self, others: int, now: float, chance: float) -> BoardTurn | None:
        """Return what to do; None: nothing yet. `others`: as for `may_post`."""
        if now < self.due_at:
            return None
        if self._post_at <= now and others >= self._enough:
            # A host that has read enough needs no look to be silent.
            self._next_post(now, chance)
            if now < self.due_at:
                return None
        self._count(now)
        self._asked = min(max(1, math.floor(self._credits)), self._quorum + 1)
        is_post_due = self._post_at <= now
        if self._suspects and not is_post_due:
            # In an outage of all there may be a thousand such looks in the same seconds.
            is_own_there = now < self._posted_at + self.time_to_live_s
            self._asked = min(self._asked, self._quorum + is_own_there)
        return BoardTurn(self._asked, is_post_due)

    def looked(self, found: int, now: float, chance: float) -> None:
        """The look of a turn found so many messages."""
        self._look_pause.reset()
        self._spend(max(1, found), now)
        self._next_look(now, chance)
        self._is_all_read = found < self._asked

    def passed(self, now: float, chance: float) -> None:
        """Another process of the host uses the board: ask again after an interval."""
        self._next_look(now, chance)
        self._next_post(now, chance)

    def may_post(self, others: int, now: float, chance: float) -> bool:
        """Whether this host speaks up: too few others have said the same. If not, it is silent.

        `others`: hosts with notices that last for `silent_s`, about the entity of ours that has
        the fewest.
        """
        if others >= self._enough:
            self._next_post(now, chance)
        elif not self._is_all_read:
            # There is more than was read: if all posted now, nobody could read it all.
            self._post_at = self._regular_at
        else:
            return True
        return False

    def posted(self, now: float, chance: float) -> None:
        """A post was stored: of a turn, or of a recovery, which waits for no turn."""
        self._post_pause.reset()
        self._posted_at = now
        self._spend(1, now)
        self._next_post(now, chance)

    def look_failed(self, now: float, chance: float, *, is_refusal: bool) -> None:
        """The board did not answer a look, or refused: there is none, or a right is missing.

        No turn comes before the pause is over, because a post follows a look.
        """
        self._spend(1, now)
        self._blocked_until = now + _about(self._look_pause.next_s(is_refusal=is_refusal), chance)

    def post_failed(self, now: float, chance: float, *, is_refusal: bool) -> None:
        """The board did not take a post; looks go on."""
        self._spend(1, now)
        pause_s = self._post_pause.next_s(is_refusal=is_refusal)
        if self._speaks:
            self._post_at = now + _about(pause_s, chance)

    def _next_look(self, now: float, chance: float) -> None:
        every_s = LOOK_EVERY_S if self._watches else HEALTHY_LOOK_S
        self._regular_at = now + _about(SUSPECT_LOOK_S if self._suspects else every_s, chance)
        self._look_at = self._regular_at

    def _next_post(self, now: float, chance: float) -> None:
        if self._speaks:
            self._post_at = now + _about(self.post_every_s, chance)

    def _count(self, now: float) -> None:
        earned = max(0.0, now - self._counted_at) * CREDITS_PER_S
        self._credits = min(self._credits_max, self._credits + earned)
        self._counted_at = now

    def _spend(self, credits_spent: int, now: float) -> None:
        self._count(now)
        self._credits -= credits_spent

    def _affordable_at(self) -> float:
        """When there is a credit for one message."""
        return self._counted_at + max(0.0, 1.0 - self._credits) / CREDITS_PER_S


class _Pause:
    """The pauses after one failure after another."""

    def __init__(self) -> None:
        self._next_s = FAILED_S

    def __repr__(self) -> str:
        return f"<pause: {self._next_s:g} s>"

    def next_s(self, *, is_refusal: bool) -> float:
        pause_s, self._next_s = self._next_s, min(FAILED_MAX_S, self._next_s * 2)
        return REFUSED_S if is_refusal else pause_s

    def reset(self) -> None:
        self._next_s = FAILED_S


def _about(seconds: float, chance: float) -> float:
    """Return a time span, longer or shorter by chance; `chance` is from 0 to 1."""
    return seconds * (1.0 + JITTER * (2.0 * chance - 1.0))
