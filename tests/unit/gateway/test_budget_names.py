"""Whatever grows in a gateway with what its clients send names its budget, as in the broker."""

from __future__ import annotations

from tests.unit.broker.test_budget_names import SOURCE, begun_empty
from tests.unit.broker.test_budget_table import cells

CONNECTION, PROCESS = "a connection", "the process"
OWNER = ""
"""Of the gateway itself: no client adds to it."""

BUDGETS: dict[str, tuple[str, str]] = {
    # Sends
    "GatewaySendingLink._batches": (PROCESS, "bytes of sends without an answer: PendingSends"),
    "GatewaySendingLink._refused": (PROCESS, "bytes of sends without an answer: PendingSends"),
    "GatewaySendingLink._waiting": (PROCESS, "bytes of sends without an answer: PendingSends"),
    "TransactedSends._waiting": (PROCESS, "bytes of sends without an answer: PendingSends"),
    "TransactedSends._sent": (PROCESS, "bytes of sends without an answer: PendingSends"),
    "EncodedMessages.suspects": (PROCESS, "bytes of sends without an answer: PendingSends"),
    "PendingSends._clients": (PROCESS, "connections"),
    "PendingSends.calls": (
        CONNECTION,
        "sends without an answer, links at the namespaces, ANSWERING_BYTES, unsettled deliveries",
    ),
    # Links to the primary
    "PrimaryConnections._of": (PROCESS, "connections"),
    "PrimaryConnections._clients": (PROCESS, "connections of a gateway for sends"),
    "PrimaryConnections._timers": (PROCESS, "connections of a gateway for sends"),
    "PrimaryConnections._closing": (PROCESS, "CLOSE_S for each that was not used for UNUSED_S"),
    "PrimaryRelay.relayed": (CONNECTION, "links"),
    "PrimaryRelay._counted": (CONNECTION, "links, those at the namespaces included"),
    "PrimaryRelay._paths": (CONNECTION, "links, those at the namespaces included"),
    "PrimaryRelay._idle_paths": (CONNECTION, "IDLE_PATHS_MAX"),
    "PrimaryRelay.nodes": (CONNECTION, "links"),
    "PrimaryRelay._settling": (CONNECTION, "bytes: SETTLING_BYTES"),
    "PrimaryRelay.doomed": (CONNECTION, "DOOMED_MAX ids of at most ID_BYTES_MAX"),
    "RelayedReceiver._numbers": (CONNECTION, "unsettled deliveries"),
    "RelayedReceiver._unconfirmed": (CONNECTION, "bytes: SETTLING_BYTES"),
    "GatewayLinks._relays": (PROCESS, "connections"),
    # Requests
    "RelayedRequests._waiting": (CONNECTION, "bytes, and WAITING_MAX of a link"),
    "RelayedRequests._numbers": (CONNECTION, "CREDIT of the primary for a link"),
    "UnansweredRequests._waiting": (CONNECTION, "bytes, and UNANSWERED_MAX"),
    "UnansweredRequests._given_up": (CONNECTION, "GIVEN_UP_MAX hashes"),
    "RelayedCoordinator._waiting": (CONNECTION, "bytes, and CREDIT of a link"),
    "RelayedCoordinator._asked": (CONNECTION, "bytes"),
    # The ledger
    "RelayRecords._asked": (CONNECTION, "ASKED_MAX of at most ITEMS_MAX tokens"),
    "ReceivedNames._by_token": (CONNECTION, "TOKENS_MAX"),
    "ReceiverRecords._held": (CONNECTION, "unsettled deliveries"),
    "ReceiverRecords._settling": (CONNECTION, "bytes: SETTLING_BYTES"),
    # Both sides of an entity with a twin
    "TwinReceiver._held": (CONNECTION, "unsettled deliveries"),
    "TwinReceiver._beyond": (CONNECTION, "bytes: BEYOND_BYTES"),
    "TwinReceiver._late": (OWNER, "two sides"),
    "TwinReceiver._down_since": (OWNER, "two sides"),
    "TwinRequests._silent": (OWNER, "two sides"),
    "CreditTurns._emptied": (OWNER, "two sides"),
    "RememberedLocks._tokens": (PROCESS, "LOCKS_MAX"),
    "GatewayTwins.open": (CONNECTION, "links, those at the namespaces included"),
    "GatewayTwins._copies": (PROCESS, "connections"),
    "ClientCopies._links": (CONNECTION, "links, those at the namespaces included"),
    "ClientCopies._by_path": (CONNECTION, "links, and PATHS_MAX; COPIES_MAX of each"),
    "ClientCopies._left": (CONNECTION, "LEFT_MAX"),
    # All clients
    "GatewayServer.peers": (PROCESS, "connections"),
    "GatewayServer._to_collect": (PROCESS, "connections"),
    # Administration
    "_Rewriting.written": (OWNER, "one request, BODY_BYTES_MAX"),
    "_Rewriting.found": (OWNER, "one request, BODY_BYTES_MAX"),
}


def test_whatever_grows_in_a_gateway_names_its_budget() -> None:
    files = sorted((SOURCE / "gateway").glob("*.py"))
    found = set[str]().union(*(begun_empty(file.read_text()) for file in files))
    assert found - BUDGETS.keys() == set(), "name the budget that bounds it"
    assert BUDGETS.keys() - found == set(), "this is no more"


def test_the_budgets_that_are_named_are_in_the_table() -> None:
    rows = {who for who, _ in cells()}
    assert {who for who, _ in BUDGETS.values()} - {OWNER} <= rows
