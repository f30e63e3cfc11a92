"""What one client, one rule and one process may keep, at a broker's end of a connection."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.unit.broker.fakes import incoming
from tests.unit.broker.links.joined import JoinedClient, new_server
from twinbus.amqp.budgets import PIECE_BYTES, Budget, BudgetExceeded, PeerBudgets
from twinbus.amqp.events import Closed, DeliveryArrived, Detached, Event
from twinbus.amqp.frames import encode_frame
from twinbus.amqp.link import COUNT_STEP, SenderLink
from twinbus.amqp.message import Properties, encode_message
from twinbus.amqp.performatives import Attach, Source, Target, Transfer
from twinbus.amqp.session import Session
from twinbus.amqp.types import Array, UInt
from twinbus.broker import budgets
from twinbus.broker.access import Admission, ConnectionLimits
from twinbus.broker.budgets import (
    CONNECTION_LINKS,
    MB,
    ClientBudgets,
    ProcessBudgets,
)
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.links.requests import REQUEST_BYTES_MAX
from twinbus.broker.sas import ALL_RIGHTS, GRANTS_MAX, ConnectionGrants, Grant
from twinbus.broker.server import BrokerServer

pytestmark = pytest.mark.virtual_time

APP = Grant(path="", rights=ALL_RIGHTS, expires_at_s=1e12, rule_name="app", signed_with="k")
OTHER = Grant(path="", rights=ALL_RIGHTS, expires_at_s=1e12, rule_name="app", signed_with="k2")
FRAME = 60_000
CONNECTION_BYTES = MB
"""A smaller limit: sixteen times as many bytes show nothing more."""


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "CONNECTION_BYTES", CONNECTION_BYTES)


def test_a_part_takes_from_the_whole_and_a_refused_one_from_neither() -> None:
    whole = Budget("all", "bytes", 10)
    parts = [Budget(f"part {number}", "bytes", 8, whole) for number in range(2)]
    parts[0].take(7)
    with pytest.raises(BudgetExceeded, match="part 0 has more than 8 bytes, which is the limit"):
        parts[0].take(2)
    with pytest.raises(BudgetExceeded, match="all has more than 10 bytes"):
        parts[1].take(4)
    assert (whole.used, parts[0].used, parts[1].used) == (7, 7, 0)
    parts[0].move_to(None)
    parts[1].take(8)
    assert (whole.used, parts[0].used) == (8, 7)


def test_a_connection_moves_to_its_rule_and_leaves_nothing_behind() -> None:
    process = ProcessBudgets()
    first, second, other = (ClientBudgets(process) for _ in range(3))
    for client, grant in ((first, APP), (second, APP), (other, OTHER)):
        client.held_bytes.take(100)
        client.join("ns", grant)
        client.links.take()
    (app, lone) = process._rules.values()
    assert (app.held_bytes.used, app.links.used, app.connections.used) == (200, 2, 2)
    assert (lone.held_bytes.used, lone.connections.used) == (100, 1)
    for client in (first, second, other):
        client.close()
    assert not process._rules
    assert [one.used for one in process.all()] == [0, 0, 0]
    second.held_bytes.give_back(100)


@pytest.mark.parametrize(("connections_max", "share"), [(2, 1), (20, 18), (10_000, 9_000)])
def test_the_connections_of_one_rule_leave_room_for_others(
    connections_max: int, share: int
) -> None:
    process = Admission(ConnectionLimits(connections=connections_max)).budgets
    for _ in range(share):
        process.enter(("ns", "app", "k"))
    with pytest.raises(BudgetExceeded, match=f"the rule 'app' has more than {share} connections"):
        ClientBudgets(process).join("ns", APP)
    ClientBudgets(process).join("ns", OTHER)


# On a connection


async def begun(server: BrokerServer, grant: Grant = APP) -> tuple[JoinedClient, Session]:
    client = JoinedClient(server, trusted=False)
    client.peer.grants.put("all", grant)
    client.peer.trust(grant)
    await client.exchange()
    session = client.connection.begin()
    await client.exchange()
    return client, session


def condition(events: list[Event], kind: type[Closed] | type[Detached] = Closed) -> str:
    (ended,) = [event for event in events if isinstance(event, kind)]
    assert ended.error is not None
    return f"{ended.error.condition}: {ended.error.description}"


def piece(link: SenderLink, size: int, number: int) -> bytes:
    transfer = Transfer(
        handle=UInt(link.handle), delivery_id=UInt(number), delivery_tag=b"t", more=True
    )
    return encode_frame(link.session.channel, transfer, bytes(size))


async def pour(client: JoinedClient, links: list[SenderLink], size: int, most: int) -> list[Event]:
    """Send pieces of deliveries that never end on these links in turn; return what came back."""
    for number in range(most):
        position = number % len(links)
        client.connection.output.put(piece(links[position], size, position))
        if number % 100 == 99 or number == most - 1:
            seen = await client.exchange(3)
            if any(isinstance(event, Closed | Detached) for event in seen):
                return seen
    return []


def queue(server: BrokerServer, path: str = "q", message_kb: int = 256) -> None:
    description = QueueDescription(max_message_size_kb=message_kb)
    server.namespace.create_queue(path, description, server.now_ms())


async def senders(client: JoinedClient, session: Session, count: int, to: str) -> list[SenderLink]:
    links = [
        session.attach_sender(f"s{number}", source=Source(), target=Target(address=to))
        for number in range(count)
    ]
    await client.exchange()
    return links


@pytest.mark.parametrize("address", ["q", "q/$management"])
async def test_deliveries_that_never_end_close_the_connection_at_its_limit(address: str) -> None:
    """One link is at its own limit sooner; a hundred of them held 219 MB."""
    server = new_server()
    queue(server)
    client, session = await begun(server)
    links = await senders(client, session, 100, address)
    seen = await pour(client, links, FRAME, 4 * CONNECTION_BYTES // FRAME)
    assert condition(seen).startswith("amqp:resource-limit-exceeded: this connection has more than")
    client.peer.connection_lost(None)
    assert [one.used for one in server.admission.budgets.all()] == [0, 0, 0]
    await server.close()


async def test_empty_pieces_count() -> None:
    server = new_server()
    queue(server)
    client, session = await begun(server)
    links = await senders(client, session, 1, "q")
    seen = await pour(client, links, 0, 2 * CONNECTION_BYTES // PIECE_BYTES)
    assert condition(seen).startswith("amqp:resource-limit-exceeded")
    await server.close()


async def test_a_request_is_bounded_by_the_messages_of_its_entity() -> None:
    server = new_server()
    queue(server)
    queue(server, "large", message_kb=4 * 1024)
    client, session = await begun(server)
    for address, is_taken in (("q/$management", False), ("large/$management", True)):
        links = await senders(client, session, 1, address)
        seen = await pour(client, links, FRAME, REQUEST_BYTES_MAX // FRAME + 2)
        assert bool(seen) is not is_taken
        if seen:
            assert "amqp:link:message-size-exceeded" in condition(seen, Detached)
    await server.close()


async def test_a_large_message_comes_though_other_things_are_held() -> None:
    server = new_server()
    queue(server)
    queue(server, "large", message_kb=5 * 1024)
    client, session = await begun(server)
    (link,) = await senders(client, session, 1, "large")
    client.connection.output.max_frame_size = 65_536
    client.peer.budgets.held_bytes.take(CONNECTION_BYTES // 2)
    link.send(b"\x00\x53\x75\xb0" + (4 * MB).to_bytes(4) + bytes(4 * MB), b"t")
    seen: list[Event] = []
    for _ in range(20):
        seen += await client.exchange(3)
    assert len(server.namespace.receive_source("large").messages) == 1
    assert client.peer.budgets.held_bytes.used < CONNECTION_BYTES
    await server.close()


async def test_the_connections_of_one_rule_share_its_bytes_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budgets, "RULE_BYTES", 2 * CONNECTION_BYTES)
    server = new_server()
    queue(server)
    ends, held = [], []
    for _ in range(3):
        client, session = await begun(server)
        links = await senders(client, session, 10, "q")
        seen = await pour(client, links, FRAME, CONNECTION_BYTES * 9 // 10 // FRAME)
        ends.append(condition(seen) if seen else "")
        held.append(client)
    assert ends[:2] == ["", ""]
    assert ends[2].startswith("amqp:resource-limit-exceeded: the rule 'app' has more than")
    client, session = await begun(server, OTHER)
    links = await senders(client, session, 10, "q")
    assert not await pour(client, links, FRAME, CONNECTION_BYTES * 9 // 10 // FRAME)
    await server.close()


async def test_names_and_properties_of_links_count_until_their_handles_are_free() -> None:
    server = new_server()
    queue(server)
    client, session = await begun(server)
    before = client.peer.budgets.held_bytes.used
    link = session.attach_sender(
        "s" * 1_000,
        source=Source(),
        target=Target(address="q"),
        properties={f"p{number}": number for number in range(1_000)},
    )
    await client.exchange()
    assert client.peer.budgets.held_bytes.used - before > 150_000
    assert client.peer.budgets.links.used == 1
    link.detach()
    await client.exchange()
    assert (client.peer.budgets.held_bytes.used, client.peer.budgets.links.used) == (before, 0)
    await server.close()


async def test_a_link_that_the_broker_refused_counts_until_its_client_has_detached() -> None:
    server = new_server()
    client, session = await begun(server)
    attach = Attach(name="x", handle=UInt(7), role=True, source=Source(address="missing"))
    for _ in range(3):
        # A client that answers no DETACH and uses the handle again.
        client.connection.output.put(encode_frame(session.channel, attach))
        await client.exchange()
    assert client.peer.budgets.links.used == 1
    client.connection.end_session(session)
    await client.exchange()
    assert [one.used for one in client.peer.budgets.all()][1:] == [0, 0]
    await server.close()


async def test_links_and_sessions_of_a_connection_are_bounded() -> None:
    server = new_server()
    queue(server)
    client, session = await begun(server)
    client.peer.budgets.links.take(CONNECTION_LINKS)
    session.attach_sender("s", source=Source(), target=Target(address="q"))
    assert "has more than 5000 links" in condition(await client.exchange())
    client, session = await begun(server)
    client.peer.budgets.sessions.limit = 3
    for _ in range(3):
        client.connection.begin()
    assert "has more than 3 sessions" in condition(await client.exchange())
    await server.close()


async def test_a_session_may_have_all_links_of_its_connection() -> None:
    """Clients such as rhea open all in one: 300 receivers are not many."""
    server = new_server()
    _, session = await begun(server)
    assert session.handle_max + 1 == CONNECTION_LINKS
    await server.close()


async def test_deliveries_that_are_not_settled_count_in_steps() -> None:
    server = new_server()
    client, _ = await begun(server)
    peer = next(iter(server.peers))
    (served,) = peer.connection.sessions.values()
    link = SenderLink(served, "x", 0)
    held = peer.budgets.held_bytes
    before = held.used

    def leave_unsettled(count: int) -> None:
        served.unsettled.by_id.clear()
        served.unsettled.by_id.update((number, (link, b"t")) for number in range(count))
        peer.connection.take_output(1)

    leave_unsettled(COUNT_STEP)
    assert held.used == before
    leave_unsettled(COUNT_STEP + 1)
    assert held.used == before + COUNT_STEP * 250
    leave_unsettled(10)
    assert held.used == before
    served.unsettled.by_id.update((number, (link, b"t")) for number in range(COUNT_STEP * 70))
    write = peer.collect_output(1)
    assert write is not None
    write()
    assert "this connection has more than" in condition(await client.exchange())
    await server.close()


def test_a_client_that_is_known_has_no_limit() -> None:
    held = PeerBudgets().held_bytes
    held.take(1 << 40)
    held.give_back(1 << 40)
    assert held.used == 0


async def test_what_is_settled_by_requests_leaves_the_table_of_its_session() -> None:
    server = new_server()
    queue(server)
    for _ in range(100):
        server.namespace.receive_source("q").enqueue(incoming(), server.now_ms())
    client, session = await begun(server)
    me = Target(address="me")
    receiver = session.attach_receiver("in", source=Source(address="q"), target=me)
    session.attach_receiver("answers", source=Source(address="q/$management"), target=me)
    asking = session.attach_sender("ask", source=Source(), target=Target(address="q/$management"))
    await client.exchange()
    receiver.grant(100)
    seen = await client.exchange()
    (served,) = next(iter(server.peers)).connection.sessions.values()
    tags = [event.tag for event in seen if isinstance(event, DeliveryArrived)]
    assert len(served.unsettled.by_id) == 100
    kept = tags.pop()
    for tag in tags:
        body = {
            "disposition-status": "completed",
            "lock-tokens": Array([UUID(bytes_le=tag)]),
        }
        request = encode_message(
            properties=Properties(message_id="1", reply_to="me"),
            application_properties={
                "operation": "com.microsoft:update-disposition",
                "associated-link-name": "in",
            },
            value=body,
        )
        asking.send(request, b"t", settled=True)
    await client.exchange()
    assert len(served.unsettled.by_id) <= 64
    assert kept in {tag for _, tag in served.unsettled.by_id.values()}
    assert len(server.namespace.receive_source("q").messages) == 1
    await server.close()


async def test_an_entity_has_some_thousand_receivers() -> None:
    server = new_server()
    queue(server)
    found = server.namespace.receive_source("q")
    server.dispatcher.receiver_count = lambda _: 5_000  # type: ignore[assignment, method-assign]
    client, session = await begun(server)
    session.attach_receiver("r", source=Source(address=found.path), target=Target(address="me"))
    text = condition(await client.exchange(), Detached)
    assert text.startswith("amqp:resource-limit-exceeded")
    assert "5000" in text.replace(",", "")
    await server.close()


async def test_a_limit_of_the_process_holds_for_all_rules_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budgets, "PROCESS_BYTES", CONNECTION_BYTES)
    server = new_server()
    queue(server)
    ends = []
    for grant in (APP, OTHER):
        client, session = await begun(server, grant)
        links = await senders(client, session, 10, "q")
        seen = await pour(client, links, FRAME, CONNECTION_BYTES * 6 // 10 // FRAME)
        ends.append(condition(seen) if seen else "")
    assert ends[0] == ""
    assert ends[1].startswith("amqp:resource-limit-exceeded: this process has more than")
    await server.close()


def test_a_connection_keeps_its_latest_tokens() -> None:
    grants = ConnectionGrants()
    for number in range(GRANTS_MAX + 2):
        grants.put(f"q{number}", APP)
    assert len(list(grants)) == GRANTS_MAX
    assert next(iter(grants._by_audience)) == "q2"


@pytest.mark.parametrize("unit", ["links", "sessions"])
@pytest.mark.parametrize("owner", ["rule", "process"])
def test_links_and_sessions_of_a_rule_and_of_the_process_are_bounded(
    monkeypatch: pytest.MonkeyPatch, owner: str, unit: str
) -> None:
    monkeypatch.setattr(budgets, f"{owner.upper()}_{unit.upper()}", 5)
    process = ProcessBudgets()
    first, second, other = (ClientBudgets(process) for _ in range(3))
    for client, grant in ((first, APP), (second, APP), (other, OTHER)):
        client.join("ns", grant)
    getattr(first, unit).take(3)
    with pytest.raises(BudgetExceeded, match=f"{owner}.* has more than 5 {unit}"):
        getattr(second, unit).take(3)
    if owner == "process":
        with pytest.raises(BudgetExceeded):
            getattr(other, unit).take(3)
    else:
        getattr(other, unit).take(5)
    first.close()
    getattr(second, unit).take(5)
