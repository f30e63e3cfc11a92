"""Planted bugs: changes to one place of the shipped code that must be found.

Each names a file, the text there and the text to put in its place, the explored world that shows it
and the promise that does not hold then. The change is made in memory: the code objects of the
functions that it changes are swapped.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

FAILOVER: Final = "pairing/core/failover.py"
ATTEMPTS: Final = "pairing/core/attempts.py"
SESSIONS: Final = "pairing/core/session_order.py"
DESTINATION: Final = "syphon/core/destination.py"
INTAKE: Final = "syphon/core/intake.py"
SENDING: Final = "syphon/core/send_control.py"
EVIDENCE: Final = "fleet/core/evidence.py"
VALIDITY: Final = "client/lock_validity.py"


@dataclass(frozen=True)
class Bug:
    file: str
    """Relative to the package."""
    text: str
    instead: str
    world: str
    promise: str
    """How the violation begins."""


BUGS: Final[dict[str, Bug]] = {
    "a failover at the first failure": Bug(
        FAILOVER, "return now + self._failover_interval_s", "return now", "outage", "failover:"
    ),
    "a success that does not stop the timer": Bug(
        FAILOVER,
        'return self._enter(EntityState.HEALTHY, now, "a send succeeded")',
        "return NOTHING",
        "lost answer",
        "failover:",
    ),
    "a failover without a first ping": Bug(
        FAILOVER,
        "return now + self._ping_interval_s * (EARLY_PING_SHARE if self._is_untested else 1.0)",
        "return None",
        "outage",
        "home:",
    ),
    "no ping after one that failed": Bug(
        FAILOVER,
        "self.timer_at = now + self._ping_interval_s\n",
        "self.timer_at = None if isinstance(event, PingFailed) else now + 5.0\n",
        "outage",
        "home:",
    ),
    "an answered ping that is not enough": Bug(
        FAILOVER,
        "if self.answered_pings >= self._healthy_pings:",
        "if self.answered_pings > self._healthy_pings:",
        "outage",
        "ping:",
    ),
    "a ping that nobody waits for": Bug(
        FAILOVER,
        "self._ping_in_flight = True\n",
        "self._ping_in_flight = False\n",
        "outage",
        "ping:",
    ),
    "a refusal that counts": Bug(
        FAILOVER, "if not event.counts:", "if False:", "refusal", "failover:"
    ),
    "a call that distrusts the backlog": Bug(
        ATTEMPTS,
        "if route is Route.BACKLOG and not self._backlog.protected:",
        "if route is Route.BACKLOG and self._backlog.protected:",
        "outage",
        "raised:",
    ),
    "a retry that comes too late": Bug(
        ATTEMPTS,
        "if now >= self._retry_at else",
        "if now > self._retry_at else",
        "outage",
        "home:",
    ),
    "a session that is free once its divert is stored": Bug(
        SESSIONS,
        "if ended is not Diversion.REFUSED:",
        "if ended is Diversion.DOUBTFUL:",
        "strict outage",
        "order:",
    ),
    "a message completed with its send": Bug(
        SENDING,
        "actions.append(Forward(message))",
        "message.accepted = not actions.append(Forward(message)); "
        "actions += self._settlements.complete([message], now)",
        "outage",
        "early:",
    ),
    "a primary whose return is not noticed": Bug(
        "syphon/core/pump.py",
        "self.destinations.is_primary_up = True",
        "self.destinations.is_primary_up = False",
        "outage",
        "home:",
    ),
    "a forward that is forgotten with its link": Bug(
        DESTINATION,
        "self.waiting.extendleft(reversed(back))",
        "self.waiting.extendleft(())",
        "backlog, a lost answer",
        "home:",
    ),
    "a back-off without an end": Bug(
        DESTINATION,
        "self.held_until = now + self.backoff_s * (1 + BACKOFF_JITTER * chance)",
        'self.held_until = float("inf")',
        "backlog, a refusal",
        "home:",
    ),
    "a held destination that is not tried": Bug(
        SENDING, "destination.start_trial()\n", "pass\n", "backlog, a refusal", "home:"
    ),
    "a refused message that is dropped": Bug(
        SENDING,
        "destination.waiting.appendleft(message)\n",
        "pass\n",
        "backlog, a refusal",
        "home:",
    ),
    "a completion that is not repeated": Bug(
        INTAKE,
        "actions = self.complete([p for p in self._intake if p.outcome is Complete], now)",
        "actions: list[Action] = []",
        "backlog, a partition",
        "home:",
    ),
    "a secondary that stays closed": Bug(
        INTAKE, "self.is_open = True\n", "pass\n", "backlog, a partition", "home:"
    ),
    "an accepted message that is not settled": Bug(
        "syphon/core/pump.py",
        "actions = self._settlements.complete(taken, now)",
        "actions: list[Action] = []",
        "backlog, a crash",
        "home:",
    ),
    "others who fail a healthy entity over": Bug(
        FAILOVER,
        "if self.state is not EntityState.SUSPECT or self.frozen:\n"
        "            return self._harmless(event)\n"
        "        assert self.own_evidence is not None\n",
        "if self.frozen:\n"
        "            return self._harmless(event)\n"
        "        self.own_evidence = self.own_evidence or OwnEvidence(now, 10.0)\n",
        "a fleet and a forged notice",
        "failover:",
    ),
    "hearsay that is told to others": Bug(
        "pairing/core/own_evidence.py",
        "return not self.others or (",
        "return True or (",
        "a fleet in an outage",
        "hearsay:",
    ),
    "a forged notice of the own host": Bug(
        EVIDENCE,
        "if notice.host == self.own_host:\n            return False",
        "if False:\n            return False",
        "a fleet and a forged notice",
        "quorum:",
    ),
    "a quorum without anybody": Bug(
        EVIDENCE,
        "self.hosts(entity, now) >= self.quorum",
        "self.hosts(entity, now) >= self.quorum - 1",
        "a fleet in an outage",
        "quorum:",
    ),
    "a notice that has ended and counts": Bug(
        EVIDENCE,
        "return [heard.notice for heard in list(said.values()) if heard.until > now]",
        "return [heard.notice for heard in list(said.values())]",
        "a fleet and a forged notice",
        "quorum:",
    ),
    "a recovery that ends no evidence": Bug(
        EVIDENCE,
        "self._kept -= len(self._hosts.pop(notice.entity_key, {}))\n",
        "pass\n",
        "a fleet in an outage",
        "quorum:",
    ),
    "a takeover without a wait": Bug(
        VALIDITY,
        "return 0.0 if has_stopped else handover_s(described_s)",
        "return 0.0",
        "a lease",
        "holders:",
    ),
    "a mark like that of a program that has stopped": Bug(
        VALIDITY,
        'return f"held by {program}".encode()',
        "return STOPPED_MARK",
        "a lease",
        "holders:",
    ),
    "a mark of another that is taken for its own": Bug(
        VALIDITY,
        'return f"held by {program}".encode()',
        'return b"held by a program"',
        "a lease",
        "holders:",
    ),
    "a lease that is relied on to the end of its lock and longer": Bug(
        VALIDITY,
        "self.ends_at = max(self.ends_at, asked_at + lock_s * KEPT_SHARE)",
        "self.ends_at = max(self.ends_at, asked_at + lock_s * 2)",
        "a lease",
        "holders:",
    ),
    "a session that does not wait for its turn": Bug(
        "syphon/core/destination.py",
        "if self._lanes is None or message.session is None:\n            destination.waiting",
        "if True:\n            destination.waiting",
        "strict backlog",
        "order:",
    ),
}


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Put the bug in for the length of a block."""
    module = importlib.import_module("twinbus." + bug.file.removesuffix(".py").replace("/", "."))
    path = Path(str(module.__file__))
    source = path.read_text()
    assert source.count(bug.text) == 1, f"{bug.text!r} is {source.count(bug.text)} times in {path}"
    right = _functions(compile(source, str(path), "exec"))
    wrong = _functions(compile(source.replace(bug.text, bug.instead), str(path), "exec"))
    swapped: list[tuple[FunctionType, CodeType]] = []
    try:
        for name, code in wrong.items():
            if code != right[name]:
                function = _found(module, name)
                swapped.append((function, function.__code__))
                function.__code__ = code
        assert swapped, f"{bug.text!r} changes no function"
        yield
    finally:
        for function, code in swapped:
            function.__code__ = code


def _functions(code: CodeType) -> dict[str, CodeType]:
    """The code of all functions and methods by qualified name; classes are looked into."""
    found: dict[str, CodeType] = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_varnames[:1] or constant.co_flags & 2:
                found[constant.co_qualname] = constant
            else:
                found |= _functions(constant)
    return found


def _found(module: Any, name: str) -> FunctionType:
    place: Any = module
    for part in name.split("."):
        place = getattr(place, part)
    function = place.fget if isinstance(place, property) else place
    assert isinstance(function, FunctionType), name
    return function
