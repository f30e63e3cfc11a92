"""Finds the backlog queues of a pair, at its start and for as long as the pair lives.

With the Manage right it uses the administration API and creates missing queues (`administration`);
without it (`create_backlog_queues=False`) it attaches to each queue (`attaching`). While a wanted
queue is not in use, it searches again and again, at the times of `secondary`. While all are
in use it only waits: a queue that is pulled, or that a divert finds missing or disabled, wakes it.

A pair with a syphon also lists the queues that other applications made for the same primary, at the
times of `ListingTimes`: it does not divert to them, but its syphon drains them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from twinbus.errors import BacklogUnavailableError, MissingRightError, error_text
from twinbus.pairing.core import secondary
from twinbus.pairing.core.backlog import lease_path
from twinbus.pairing.core.secondary import LIST_BUSY_S, ListingTimes
from twinbus.pairing.lifecycle.attaching import (
    NEVER_SHOWN,
    SETTING_TEXTS,
    LinkSearch,
    receiver_error,
)
from twinbus.pairing.observing.events import RightMissing
from twinbus.pairing.sdk.administration import (
    BacklogAdministration,
    Findings,
    SecondaryUnreachable,
    first_line,
)
from twinbus.servicebus.failures import FailureMeaning, of_error
from twinbus.servicebus.names import board_path
from twinbus.status.document import EntityState, short_queue_list
from twinbus.wording import plain

if TYPE_CHECKING:
    from twinbus.pairing.sending.shared_state import SharedState

log = logging.getLogger("twinbus.pairing")

START_LIMIT_S: Final = 8.0
"""Pairing has 10 s with a secondary that does not answer; closing takes the rest."""

LIMIT_S: Final = 60.0
"""Longest search in the background. Attaching to a hundred queues takes half of it."""


class Discovery:
    def __init__(
        self,
        state: SharedState,
        found: Callable[[list[str]], Awaitable[None]],
    ) -> None:
        """`found` is called with queues to drain, each once, as they are found."""
        self._state = state
        self._found = found
        self._drained: set[str] = set()
        self._new: list[str] = []
        """Queues to drain that `found` has not accepted yet."""
        self._lost: set[str] = set()
        """Queues in use that may be missing or disabled: diverts failed there."""
        self._sound_at: dict[str, float] = {}
        """When the search found a queue as it should be although diverts had failed there."""
        self._refused_at: dict[str, float] = {}
        """When a queue refused a message for a setting that the search cannot see."""
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._changed_at = self._searched_at = state.now
        self._answers = True
        self._missing_right: str | None = None
        self._has_lease_queue = False
        self._has_board = False
        options = state.options
        self._times: ListingTimes | None = None
        """When to list the queues of other applications; None: no syphon runs here, or the pair
        does without the Manage right."""
        if options.enable_syphon and options.create_backlog_queues:
            self._times = ListingTimes()
        self.unreachable: str | None = None
        """Why the last search did not finish; None: the result for every queue is known."""
        self.not_verified: dict[str, tuple[str, ...]] = {}
        """For each queue the settings that could not be read."""
        state.on_queue_lost = self._queue_lost

    @property
    def searching(self) -> str | None:
        """Why the search goes on; None: every wanted queue is in use."""
        missing = self._missing()
        if self.unreachable is not None or not missing:
            return self.unreachable
        return f"{len(missing)} of {len(self._state.paths)} backlog queues are not in use"

    async def start(self) -> None:
        """Search for some seconds; search on in the background for queues that are not in use.

        MissingRightError; BacklogUnavailableError if the secondary is required and missing.
        """
        ends = self._state.now + START_LIMIT_S
        await self._search()
        state = self._state
        is_protected = state.rotation.protected
        if state.options.require_secondary and not is_protected:
            absences = state.rotation.absences(state.now)
            why = self.unreachable or "; ".join(f"{q}: {w}" for q, w in sorted(absences.items()))
            raise BacklogUnavailableError(
                f"no backlog queue is available in {state.secondary.endpoint}, and the options say"
                f" require_secondary ({why})",
                queue_errors=dict(absences),
            )
        await self._hand_over(ends)
        if self.searching is not None:
            log.warning(
                "%s: the pair %s backlog queues (%s); sends use the primary, the search goes on",
                state.primary.label,
                "has only some" if is_protected else "is UNPROTECTED: it has no",
                self.searching,
            )
        self._task = asyncio.create_task(self._search_on(), name="search for backlog queues")

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def _queue_lost(self, queue: str, *, is_refusal: bool) -> None:
        """Search for a queue in use that failed: it may be gone. A refusal is for every message."""
        now = self._state.now
        if is_refusal:
            self._refused_at[queue] = now
        else:
            is_known = queue in self._lost or queue not in self._state.rotation.queues
            # If divert and search contradict each other, they must not keep each other busy.
            is_sound = now < self._sound_at.get(queue, -math.inf) + secondary.SEARCH_S
            if is_known or is_sound:
                return
        self._lost.add(queue)
        self._changed_at = now
        self._woken.set()

    def _missing(self) -> list[str]:
        in_use = frozenset(self._state.rotation.queues) - self._lost
        return [path for path in self._state.paths if path not in in_use]

    async def _search_on(self) -> None:
        label = self._state.primary.label
        while True:
            await self._wait_for_next()
            was_missing, answered = self._missing(), self._answers
            try:
                await self._search()
                await self._hand_over(self._state.now + START_LIMIT_S)
                self._missing_right = None
            except MissingRightError as error:
                self._right_missing(error)
            except Exception as error:  # it is logged, and the search must go on
                reason = error_text(error)
                if not secondary.is_same_reason(self.unreachable, reason):
                    log.exception("%s: the search failed", label)
                self.unreachable = reason
            if answered and not self._answers:
                log.warning(
                    "%s: the search for backlog queues failed (%s)", label, self.unreachable
                )
            elif self._answers and not answered:
                log.warning("%s: the secondary answers the search for backlog queues", label)
            if was_missing and self.searching is None:
                log.info("%s: all backlog queues are in use", label)

    async def _wait_for_next(self) -> None:
        now, at = self._state.now, None
        if self.searching is not None or self._new:
            since_s = now - self._changed_at
            wait_s = secondary.search_wait_s(
                since_s, answers=self._answers, chance=self._state.jitter()
            )
            at = now + wait_s
        while True:
            wakes_at = at
            if self._times is not None:
                # A syphon lists more often in an outage.
                wakes_at = min(math.inf if at is None else at, self._state.now + LIST_BUSY_S)
            try:
                async with asyncio.timeout_at(wakes_at):
                    await self._woken.wait()
            except TimeoutError:
                now = self._state.now
                if (at is not None and now >= at) or self._lists_now():
                    return
                continue
            self._woken.clear()
            now = self._state.now
            since_s = now - self._searched_at
            soon = now + secondary.search_wait_after_loss_s(since_s, chance=self._state.jitter())
            at = soon if at is None else min(at, soon)

    def _lists_now(self) -> bool:
        if self._times is None:
            return False
        now, entities = self._state.now, self._state.monitors.all()
        is_down = any(entity.failover.state is not EntityState.HEALTHY for entity in entities)
        self._times.observe(is_down=is_down, moved=0, now=now)
        return now >= self._times.due_at(now)

    async def _search(self) -> None:
        state, findings = self._state, Findings()
        paths, options, answered = self._missing(), self._state.options, self._answers
        self._searched_at = state.now
        limit_s = START_LIMIT_S if self._task is None else LIMIT_S
        try:
            async with asyncio.timeout(limit_s):
                if options.create_backlog_queues:
                    await self._administer(paths, findings)
                else:
                    await LinkSearch(state, findings, fails_fast=self._task is None).run(paths)
        except (SecondaryUnreachable, TimeoutError) as error:
            self.unreachable = str(error) or f"no answer within {limit_s:g} s"
            self._answers = False
        else:
            # Only now: while a search is in progress, the result of the last one holds.
            self.unreachable, self._answers = None, True
        finally:
            self._apply(findings)
        if answered != self._answers:
            self._changed_at = state.now

    async def _administer(self, paths: list[str], findings: Findings) -> None:
        state, options = self._state, self._state.options
        async with BacklogAdministration(
            state.secondary,
            state.recorder,
            timeout_s=options.attempt_timeout_s,
            environment=state.environment,
        ) as admin:
            await admin.find_or_create(paths, findings, accept_drift=options.accept_drift)
            if options.session_order == "strict" and not self._has_lease_queue:
                await admin.ensure_lease_queue(lease_path(state.primary.label))
                self._has_lease_queue = True
            if options.board and not self._has_board:
                # What is wrong with it concerns the fleet alone, which finds it out by itself.
                await admin.ensure_board(board_path(state.primary.label))
                if not self._has_lease_queue:
                    # Its leases say which host pings; without it each host does.
                    await admin.ensure_ping_leases(lease_path(state.primary.label))
                self._has_board = True
            if self._times is not None and self._lists_now():
                self._times.searched(state.now)
                own = {path.lower() for path in state.paths}
                others = await admin.backlog_queues(state.primary.label)
                findings.drained += [path for path in others if path.lower() not in own]

    def _apply(self, findings: Findings) -> None:
        """Update the rotation, and report what has changed; a search that finds the same is silent.

        A queue in use at which diverts failed, and which the search finds as it should be, is only
        pulled: it returns by the rules of the rotation.
        """
        state = self._state
        self._keep_refused(findings)
        changed: dict[str, list[str]] = {}
        for path, reason in findings.left_out.items():
            if not secondary.is_same_reason(state.rotation.left_out.get(path), reason):
                self._changed_at = state.now
                state.leave_out(path, reason, is_logged=False)
                changed.setdefault(plain(reason.replace(path, "")), []).append(path)
        for paths in changed.values():
            # Ten queues that an administrator has not made are one line.
            are, why = "are" if len(paths) > 1 else "is", plain(findings.left_out[paths[0]])
            log.warning("%s %s left out: %s", short_queue_list(paths), are, why)
            for path in paths:
                self._log_drift(path, findings)
        # In the order of their paths, not of the answers.
        for path in sorted(findings.usable, key=state.paths.index):
            if path not in state.rotation.queues or path in findings.created:
                self._changed_at = state.now
                if self._task is not None:
                    log.warning("%s: found, in use from now on", path)
                state.put_in(path, tuple(map(str, findings.drift.get(path, ()))))
                self._log_drift(path, findings)
        self._sound_at |= dict.fromkeys(self._lost.intersection(findings.usable), state.now)
        self._lost -= {*findings.usable, *findings.left_out}
        self.not_verified.update(findings.not_verified)
        # Those of other applications come by index after our own.
        order = [path for path in state.paths if path in findings.drained]
        order += [path for path in findings.drained if path not in state.paths]
        new = [path for path in order if path not in self._drained]
        self._drained.update(new)
        self._new += new

    def _keep_refused(self, findings: Findings) -> None:
        """Keep out what refused a message, unless it is verified now or the time has come."""
        for path in [*findings.usable]:
            refused_at = self._refused_at.get(path)
            if refused_at is None:
                continue
            is_verified = "sessions" not in findings.not_verified.get(path, ())
            if is_verified or self._state.now >= refused_at + secondary.REFUSAL_S:
                del self._refused_at[path]
            else:
                findings.usable.remove(path)
                findings.left_out[path] = self._state.rotation.left_out.get(
                    path, SETTING_TEXTS["sessions"]
                )

    @staticmethod
    def _log_drift(path: str, findings: Findings) -> None:
        found = findings.drift.get(path)
        if found:
            log.warning(
                "%s differs from what we would create: %s", path, "; ".join(map(str, found))
            )

    async def _hand_over(self, ends: float) -> None:
        """Pass on the queues to drain; they are kept for the next time if a right is missing."""
        new = list(self._new)
        if not new:
            return
        if self._state.options.enable_syphon:
            await self._require_listen(new, ends)
        await self._found(new)
        self._new = [path for path in self._new if path not in new]

    async def _require_listen(self, new: list[str], ends: float) -> None:
        """MissingRightError if a receiver is refused; no answer is the relay's to report."""
        state = self._state
        if state.options.create_backlog_queues:
            # Rights on single queues are for those that an administrator made: one tells for all.
            unknown = new[:1]
        else:
            unknown = [path for path in new if self.not_verified.get(path, ()) != NEVER_SHOWN]
        for path in unknown:
            try:
                async with asyncio.timeout_at(ends):
                    error = await receiver_error(state, path)
            except TimeoutError:
                return
            if error is not None and of_error(error) is FailureMeaning.UNAUTHORIZED:
                raise MissingRightError(
                    f"enable_syphon receives from {path} in {state.secondary.endpoint}, which needs"
                    f" the Listen right, and the credential was refused ({first_line(error)});"
                    " grant it, or run the syphon elsewhere with enable_syphon=False"
                )

    def _right_missing(self, error: MissingRightError) -> None:
        """Report a right that is missing since the pair was started; what is in use stays so."""
        state, reason = self._state, str(error)
        self._answers = True
        for path in self._missing():
            known = state.rotation.left_out.get(path)
            if path not in state.rotation.queues and not secondary.is_same_reason(known, reason):
                state.leave_out(path, reason, is_logged=False)
        if not secondary.is_same_reason(self._missing_right, reason):
            self._changed_at = state.now
            log.warning("%s: %s", state.primary.label, error)
            state.listeners.tell(RightMissing(reason=reason))
        self.unreachable = self._missing_right = reason
