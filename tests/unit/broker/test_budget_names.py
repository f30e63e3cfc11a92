"""Whatever grows with what a client sends names its budget: a row of the table in docs/security.md.

The test finds every list, map, set and buffer that a connection, link or port of the broker begins
empty. A new one fails it until it is listed here, with who takes it and what bounds it.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.unit.broker.test_budget_table import ROOT, cells

SOURCE = ROOT / "src/twinbus"
AMQP = ("connection.py", "frames.py", "link.py", "session.py")
FILES = [
    *(SOURCE / "amqp" / name for name in AMQP),
    *sorted((SOURCE / "broker").glob("*.py")),
    *sorted((SOURCE / "broker/links").glob("*.py")),
]
EMPTY = {"list", "dict", "set", "deque", "bytearray", "OrderedDict", "defaultdict", "Counter"}

CONNECTION, ADDRESS, PROCESS = "a connection", "an address without a token", "the process"
ENTITY = "an entity"
OWNER = ""
"""Of whoever started the broker: no client adds to it."""

BUDGETS: dict[str, tuple[str, str]] = {
    # amqp: one connection
    "Connection.sessions": (CONNECTION, "sessions"),
    "Connection._by_remote_channel": (CONNECTION, "sessions"),
    "Connection._shapes": (CONNECTION, "SHAPES_MAX of a connection"),
    "Connection._answers": (CONNECTION, "ANSWERS_MAX of a connection"),
    "FrameOutput._frames": (CONNECTION, "bytes that its client does not read"),
    "Link.properties": (CONNECTION, "bytes: link_bytes"),
    "SenderLink.prefixes": (CONNECTION, "sizes of tags up to TAG_BYTES_MAX"),
    "ReceiverLink.partial": (CONNECTION, "bytes, PIECE_BYTES for each"),
    "Unsettled.by_id": (CONNECTION, "bytes, in steps of COUNT_STEP"),
    "Unsettled._order": (CONNECTION, "bytes: at most twice the unsettled"),
    "Session.links": (CONNECTION, "links"),
    "Session._by_remote_handle": (CONNECTION, "links"),
    "Session._attaching": (OWNER, "links that this end attaches"),
    "Session._blocked": (CONNECTION, "bytes that wait for windows: BLOCKED_BYTES_MAX"),
    "Session._window_waiters": (CONNECTION, "links"),
    "Session._free_handles": (CONNECTION, "links of a session: handle_max"),
    # broker: one client
    "Peer._receivers": (CONNECTION, "links"),
    "Input._unread": (CONNECTION, "bytes, while they wait for their turn"),
    "ReplyLink._waiting": (CONNECTION, "bytes, and REPLIES_MAX of a link"),
    "ReplyLinks._found": (CONNECTION, "links"),
    "ConnectionGrants._by_audience": (CONNECTION, "bytes, and GRANTS_MAX tokens"),
    "DeliveringLink._settled_there": (CONNECTION, "a quarter of the unsettled"),
    "ClientTransactions._open": (CONNECTION, "OPEN_MAX transactions"),
    "ClientTransactions._timed_out": (CONNECTION, "TIMED_OUT_MAX ids"),
    "_Open.deliveries": (CONNECTION, "OPERATIONS_MAX of a transaction"),
    "_Open.rights": (CONNECTION, "OPERATIONS_MAX of a transaction"),
    "AmqpWebSocket._came": (CONNECTION, "one read: reading waits until it is taken"),
    "HttpConnection._unread": (PROCESS, "bytes, while they wait for their turn"),
    "WebSocketTransport._buffer": (CONNECTION, "bytes that its client does not read"),
    "IdleLinks._seen": (CONNECTION, "links"),
    # broker: receivers of entities
    "Dispatcher._consumers": (ENTITY, "receivers"),
    "Dispatcher._waiting": (ENTITY, "receivers"),
    "Dispatcher._able": (ENTITY, "receivers"),
    "Dispatcher._asking": (ENTITY, "receivers"),
    "Dispatcher._of_session": (ENTITY, "receivers"),
    "Dispatcher._ready": (ENTITY, "entities with something to give"),
    # broker: all connections
    "Admission._strangers": (ADDRESS, "connections"),
    "Newcomers._hosts": (PROCESS, "connections: the oldest of who has most gives way"),
    "Newcomers._of_site": (PROCESS, "connections: the oldest of who has most gives way"),
    "Listener._handovers": (PROCESS, "connections"),
    "Listener._pauses": (OWNER, "addresses that the port listens on"),
    "Listener._hosts": (PROCESS, "connections"),
    "Listener._sniffing": (PROCESS, "connections"),
    "Listener._handshakes": (PROCESS, "connections"),
    "Listener._next_handshakes": (PROCESS, "connections"),
    "BrokerServer.peers": (PROCESS, "connections"),
    "BrokerServer._to_collect": (PROCESS, "connections"),
    "Turns._waiting": (PROCESS, "connections"),
    "Prepared._found": (PROCESS, "PREPARING_MAX deliveries of BATCH_MESSAGES_MAX messages"),
    "Prepared._messages": (PROCESS, "PREPARING_MAX deliveries of BATCH_MESSAGES_MAX messages"),
    "ProcessBudgets._rules": (PROCESS, "connections"),
    "UnreadBytes._of": (PROCESS, "connections"),
    # Not of clients
    "BrokerServer.changing": (OWNER, "creations under way, by who may manage"),
    "FaultPlan._faults": (OWNER, "faults, set by who may manage"),
    "FaultPlan._buckets": (OWNER, "faults, set by who may manage"),
    "DamageReport._logged": (OWNER, "damaged records of the store"),
    "Tokens._fresh": (OWNER, "TOKENS_AT_ONCE"),
    "BrokerHost._servers": (OWNER, "namespaces"),
    "BrokerHost._https": (OWNER, "namespaces"),
    "BrokerHost._listeners": (OWNER, "namespaces"),
    "BrokerHost._second": (OWNER, "namespaces"),
    "Listener._sockets": (OWNER, "addresses that the port listens on"),
}


def begun_empty(source: str) -> set[str]:
    """The attributes that a class of this source begins as an empty container, by class."""
    found = set()
    for one in ast.walk(ast.parse(source)):
        if not isinstance(one, ast.ClassDef):
            continue
        for node in ast.walk(one):
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                targets, value = [node.target], node.value
            else:
                continue
            names = [each.attr for each in targets if isinstance(each, ast.Attribute)]
            if _is_empty(value):
                found |= {f"{one.name}.{name}" for name in names}
    return found


def _is_empty(value: ast.expr) -> bool:
    if isinstance(value, ast.List | ast.Set):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    if not isinstance(value, ast.Call) or value.args:
        return False
    made = value.func.value if isinstance(value.func, ast.Subscript) else value.func
    return isinstance(made, ast.Name) and made.id in EMPTY


def test_whatever_grows_names_its_budget() -> None:
    found = set[str]().union(*(begun_empty(Path(file).read_text()) for file in FILES))
    assert found - BUDGETS.keys() == set(), "name the budget that bounds it"
    assert BUDGETS.keys() - found == set(), "this is no more"


def test_the_budgets_that_are_named_are_in_the_table() -> None:
    rows = {who for who, _ in cells()}
    assert {who for who, _ in BUDGETS.values()} - {OWNER} <= rows


def test_a_new_buffer_is_found() -> None:
    source = """
class Link:
    def __init__(self):
        self.kept: dict[str, int] = {}
        self.parts = deque[bytes]()
        self.size = 0
    def reset(self):
        self.late = []
"""
    assert begun_empty(source) == {"Link.kept", "Link.parts", "Link.late"}
