"""What grows in the engine with what clients send and leave there names its budget, too.

Most of it is the memory of an entity, which its quota counts (`engine.limits`).
"""

from __future__ import annotations

from tests.unit.broker.test_budget_names import SOURCE, begun_empty
from tests.unit.broker.test_budget_table import cells

CONNECTION, ENTITY, PROCESS = "a connection", "an entity", "the process"
OWNER = ""
"""Of who may manage, who creates entities; they are not limited."""

BUDGETS: dict[str, tuple[str, str]] = {
    # Messages of an entity
    "MessageIndex.messages": (ENTITY, "bytes: messages"),
    "MessageIndex._of_session": (ENTITY, "bytes: messages"),
    "ReadyMessages._fresh": (ENTITY, "bytes: messages, and as many that were dropped"),
    "ReadyMessages._returned": (ENTITY, "bytes: messages, and as many that were dropped"),
    "ReadyMessages._dropped": (ENTITY, "bytes: no more than messages, or SWEEP_FLOOR"),
    "DuplicateHistory._first_seen": (ENTITY, "bytes: remembered ids"),
    "DuplicateHistory._oldest": (ENTITY, "bytes: remembered ids"),
    "MessageStates._retries": (ENTITY, "bytes: twice the messages"),
    "Locks._deliveries": (ENTITY, "bytes: messages"),
    "Deadlines._heap": (ENTITY, "bytes: SWEEP_FACTOR times what has a due time"),
    "Deadlines._rows": (ENTITY, "bytes: SWEEP_FACTOR times what has a due time"),
    "Forwarding._outbox": (ENTITY, "bytes: SWEEP_FACTOR times the messages that wait"),
    "Schedule._reached": (ENTITY, "bytes: messages whose publishing failed"),
    # Sessions of an entity
    "Sessions._sessions": (ENTITY, "bytes: sessions with messages; receivers that hold one"),
    "Sessions._available": (ENTITY, "bytes: sessions with messages"),
    "Sessions._held_by": (ENTITY, "receivers"),
    "Sessions._fed": (ENTITY, "bytes: sessions with messages"),
    "Sessions._relisted": (ENTITY, "RELISTED_MAX, and sessions that were listed"),
    "Sessions.states": (ENTITY, "bytes: states of sessions"),
    "MessageSession.tokens": (ENTITY, "bytes: messages"),
    # Rules
    "Subscription.rules": (ENTITY, "rules"),
    "Subscription.rule_numbers": (ENTITY, "rules"),
    "Subscription._compiled": (ENTITY, "rules"),
    # Transactions
    "BrokerTransaction._work": (CONNECTION, "OPERATIONS_MAX of a transaction"),
    "BrokerTransaction._settled": (CONNECTION, "OPERATIONS_MAX of a transaction"),
    "BrokerTransaction._final": (CONNECTION, "OPERATIONS_MAX of a transaction"),
    # All entities
    "EngineLog._operations": (PROCESS, "bytes that clients sent in one step of the loop"),
    "EngineLog._rows": (PROCESS, "bytes that clients sent in one step of the loop"),
    "Directory._entities": (OWNER, "entities"),
    "Directory._parts": (OWNER, "two parts of each entity"),
    "Topic.subscriptions": (OWNER, "entities"),
    "Timetable._heap": (OWNER, "twice the entities, and SWEEP_FLOOR"),
    "Timetable._armed": (OWNER, "entities"),
    "Timetable._due": (OWNER, "entities"),
}


def test_whatever_grows_in_the_engine_names_its_budget() -> None:
    files = sorted((SOURCE / "broker/engine").glob("*.py"))
    found = set[str]().union(*(begun_empty(file.read_text()) for file in files))
    assert found - BUDGETS.keys() == set(), "name the budget that bounds it"
    assert BUDGETS.keys() - found == set(), "this is no more"


def test_the_budgets_that_are_named_are_in_the_table() -> None:
    rows = {who for who, _ in cells()}
    assert {who for who, _ in BUDGETS.values()} - {OWNER} <= rows
