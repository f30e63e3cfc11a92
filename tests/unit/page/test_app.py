"""The page attacked: other sites, wrong names, viewers, markup, and what an answer may not hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from tests.ledger_reading import read
from tests.unit.page.asgi import PageAnswer, answer, call
from tests.unit.status.statuses import QUEUE, entity, status
from twinbus.ledger import LedgerWriter
from twinbus.page import actions as actions_module
from twinbus.page.actions import Actions
from twinbus.page.app import PageAccess, Role, application
from twinbus.page.core.view import Board, HostAnswer
from twinbus.page.documents import VIEWERS_PAUSE_S, PageDocuments
from twinbus.page.live import POLL_EVERY_S, HostPoller, LiveView, PeerPoller
from twinbus.status.document import SyphonQueueStatus

HOST = "localhost:8080"
OPERATOR, VIEWER = "operator-token-0123456789", "viewer-token-0123456789"
ACTION = {
    "host": HOST, "origin": f"http://{HOST}", "x-twinbus-page": "1",
    "content-type": "application/json", "cookie": f"twinbus-page-8080={OPERATOR}",
}  # fmt: skip
MARKUP = '</script><img src=x onerror="alert(1)">'
ID = "contoso.7.abc"


class FakeHosts(HostPoller):
    """Hosts that answer what the test puts there."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[HostAnswer] = [answer(status(entity("orders"), entity(MARKUP)))]
        self.polls = 0

    def poll(self) -> list[HostAnswer]:
        self.polls += 1
        return self.answers

    def path_of(self, id_: str) -> Path | None:
        return Path(f"/run/{id_}.sock") if any(one.id == id_ for one in self.answers) else None


class FakeSecondary:
    """A secondary with one dead letter."""

    count_again_s = 30.0

    def __init__(self) -> None:
        self.searches: list[Mapping[str, str]] = []
        self.counts = 0
        self.replayed: list[tuple[str, list[int]]] = []
        self.pruned: list[tuple[str, int, list[str]]] = []

    def holds(self, secondary: str) -> bool:
        return secondary == "sb://contoso-dr"

    async def queues(self, label: str) -> list[dict[str, Any]]:
        self.counts += 1
        path = f"{label}/x-servicebus-transfer/0"
        return [{"path": path, "waiting": 12, "oldest_age_s": 3.0, "dead_letters": 1}]

    async def letters(
        self, label: str, search: Mapping[str, str], *, with_bodies: bool
    ) -> dict[str, Any]:
        self.searches.append(search)
        letter = {"id": MARKUP, "sequence": 4, **({"preview": "secret"} if with_bodies else {})}
        return {"truncated": False, "letters": [letter]}

    async def letter(self, queue: str, number: int) -> dict[str, Any] | None:
        return {"body_text": "secret"} if number == 4 else None

    async def replay(self, queue: str, numbers: list[int]) -> str:
        self.replayed.append((queue, numbers))
        return f"replayed {len(numbers)}"

    async def prunable(self, label: str, keep: int) -> list[str]:
        return [f"{label}/x-servicebus-transfer/{keep}"]

    async def prune(self, label: str, keep: int, queues: list[str]) -> str:
        self.pruned.append((label, keep, queues))
        return f"deleted {len(queues)}"


class World:
    """One page with all that it needs."""

    def __init__(self, ledger: LedgerWriter | None = None, *, is_read_only: bool = False) -> None:
        self.hosts, self.secondary = FakeHosts(), FakeSecondary()
        self.board = Board("web-1")
        self.live = LiveView(self.board, self.hosts, PeerPoller([], self.board.table))
        acting = Actions(self.live, self.secondary, ledger, is_read_only=is_read_only)
        directory = None if ledger is None else ledger.directory
        documents = self.documents = PageDocuments(acting, directory)
        access = PageAccess(
            tokens={Role.OPERATOR: OPERATOR, Role.VIEWER: VIEWER},
            hosts=frozenset({HOST, "127.0.0.1:8080"}),
            port=8080,
        )
        self.app: ASGIApp = application(access, self.live, documents, "1.0")

    async def get(self, target: str, token: str = OPERATOR, **headers: str) -> PageAnswer:
        given = {"host": HOST, "authorization": f"Bearer {token}", **headers}
        return await call(self.app, "GET", target, given)

    async def act(
        self, document: Any, headers: Mapping[str, str] = ACTION, **more: str
    ) -> PageAnswer:
        if not self.board.table.pairs:
            await self.live.refresh()
        body = json.dumps(document).encode()
        return await call(self.app, "POST", "/api/actions", {**headers, **more}, body)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any]]:
    """What was asked over control sockets."""
    found: list[tuple[str, str, Any]] = []

    def ask(path: Path, verb: str, arguments: Mapping[str, str] | None = None) -> None:
        found.append((path.stem, verb, arguments))

    monkeypatch.setattr(actions_module, "ask", ask)
    return found


FREEZE = {"action": "freeze", "pair": ID, "path": "orders"}


async def test_the_printed_address_becomes_a_cookie_and_the_token_leaves_the_address() -> None:
    world = World()
    entered = await call(world.app, "GET", f"/?token={OPERATOR}", {"host": HOST})
    assert entered.status == 200
    assert b'content="0; url=/"' in entered.body
    assert b'rel="icon" href="data:,"' in entered.body, "a slow browser asks for /favicon.ico"
    assert OPERATOR.encode() not in entered.body
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    home = await call(world.app, "GET", "/", {"host": HOST, "cookie": cookie.partition(";")[0]})
    assert home.status == 200
    assert b"<html" in home.body
    assert home.headers["content-security-policy"].startswith("default-src 'none'")
    assert home.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("headers", "status_code"),
    [
        ({"host": HOST}, 401),
        ({"host": HOST, "authorization": "Bearer wrong"}, 401),
        ({"host": HOST, "cookie": "twinbus-page-8080=wrong; a=b"}, 401),
        ({"host": HOST, "cookie": f"twinbus-page-8081={OPERATOR}"}, 401),
        ({"host": "evil.example:8080", "authorization": f"Bearer {OPERATOR}"}, 421),
        ({"host": "localhost:9090", "authorization": f"Bearer {OPERATOR}"}, 421),
        ({"authorization": f"Bearer {OPERATOR}"}, 421),
        (
            {
                "host": HOST,
                "cookie": f"twinbus-page-8080={OPERATOR}",
                "sec-fetch-site": "cross-site",
            },
            403,
        ),
    ],
)
@pytest.mark.parametrize("target", ["/", "/static/page.css", "/api/view", "/api/stream"])
async def test_strangers_and_other_sites_see_nothing(
    headers: dict[str, str], status_code: int, target: str
) -> None:
    world = World()
    refused = await call(world.app, "GET", target, headers)
    assert refused.status == status_code
    assert refused.headers["content-security-policy"]
    assert world.hosts.polls == 0
    assert b"contoso" not in refused.body


async def test_a_wrong_name_gets_no_cookie_for_a_right_token() -> None:
    world = World()
    refused = await call(world.app, "GET", f"/?token={OPERATOR}", {"host": "evil.example"})
    assert refused.status == 421
    assert "set-cookie" not in refused.headers
    wrong = await call(world.app, "GET", "/?token=guess", {"host": HOST})
    assert wrong.status == 401


@pytest.mark.parametrize(
    ("change", "status_code"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": f"https://{HOST}"}, 403),
        ({"origin": "http://localhost:9090"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"x-twinbus-page": ""}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"host": "evil.example"}, 421),
        ({"cookie": f"twinbus-page-8080={VIEWER}"}, 403),
        ({"cookie": ""}, 401),
    ],
)
async def test_an_action_of_another_site_or_of_a_viewer_is_refused(
    asked: list[Any], change: dict[str, str], status_code: int
) -> None:
    refused = await World().act(FREEZE, {**ACTION, **change})
    assert refused.status == status_code
    assert asked == []


async def test_an_action_without_an_origin_needs_a_bearer_token(asked: list[Any]) -> None:
    world = World()
    bare = {name: text for name, text in ACTION.items() if name != "origin"}
    assert (await world.act(FREEZE, bare)).status == 403
    script = {**bare, "cookie": "", "authorization": f"Bearer {OPERATOR}"}
    assert (await world.act(FREEZE, script)).status == 200
    viewer = {**script, "authorization": f"Bearer {VIEWER}"}
    assert (await world.act(FREEZE, viewer)).status == 403
    assert asked == [(ID, "freeze", {"path": "orders"})]


async def test_an_action_is_recorded_with_who_asked(asked: list[Any], tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as ledger:
        world = World(ledger)
        done = (await world.act(FREEZE)).json
        assert done["ok"] is True
        assert done["ledger"] is True
        (event,) = world.board.events
        assert (event.kind, event.who) == ("action", "operator at 127.0.0.1")
        (record,) = list(read(tmp_path))
        assert record["operation"] == "action"
        assert (record["state"], record["entity"], record["outcome"]) == ("freeze", "orders", "ok")
        assert record["error"] == "asked by operator at 127.0.0.1"
        shown = (await world.get("/api/events")).json["events"]
        assert [one["kind"] for one in shown] == ["action"]


async def test_an_outage_of_two_pairs_is_told_of_both(asked: list[Any], tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as ledger:
        world = World(ledger)
        await world.act(FREEZE)
        ledger.record("state", pair="fabrikam+dr", entity="orders", state="failed over")
        ledger.flush()
        events = (await world.get("/api/events")).json["events"]
    # The page has observed the first one itself and finds it in the ledger, too. Both can be of one
    # millisecond.
    assert sorted((one["pair"], one["kind"]) for one in events) == [
        ("contoso", "action"),
        ("fabrikam", "state"),
    ]
    assert asked == [(ID, "freeze", {"path": "orders"})]


async def test_a_note_is_an_event_and_kept_in_the_ledger(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as ledger:
        world = World(ledger)
        for bad in ("", " ", "x" * 301, 5, None):
            assert (await world.act({"action": "note", "text": bad})).status == 400
        assert (await world.act({"action": "note", "text": "called\nthe vendor"})).json["ok"]
        (event,) = world.board.events
        assert (event.kind, event.text) == ("note", "called the vendor")
        (record,) = list(read(tmp_path))
        assert (record["operation"], record["state"]) == ("action", "note")
        assert record["error"] == "called the vendor (by operator at 127.0.0.1)"


async def test_the_rate_goes_to_the_syphons_of_the_pair(asked: list[Any]) -> None:
    world = World()
    rate = {"action": "rate", "pair": ID, "value": " 50 "}
    assert (await world.act(rate)).status == 409, "no syphon runs"
    pumps = {QUEUE: SyphonQueueStatus(limit="at most 50/s: the rate is set")}
    world.hosts.answers = [answer(status(entity("orders"), syphon=pumps), 1)]
    await asyncio.sleep(POLL_EVERY_S / 2)
    await world.live.refresh()
    syphon = world.board.table.pairs[ID].syphon
    assert syphon is not None
    assert syphon.limit == "at most 50/s: the rate is set"
    for bad in (None, 5, "", ["5"]):
        assert (await world.act({**rate, "value": bad})).status == 400
    assert (await world.act(rate)).json["text"] == "the syphon moves at most 50 messages a second"
    assert (await world.act({**rate, "value": "adaptive"})).json["ok"] is True
    rates = [arguments["most_per_s"] for _, verb, arguments in asked if verb == "rate"]
    assert rates == ["50", "adaptive"]


async def test_prune_deletes_only_what_a_dry_run_named(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path) as ledger:
        world = World(ledger)
        prune = {"action": "prune", "pair": ID}
        dry = (await world.act({**prune, "dry_run": True})).json
        assert dry["queues"] == ["contoso/x-servicebus-transfer/2"]
        assert list(read(tmp_path)) == []
        for bad in (None, [], "all", [1]):
            assert (await world.act({**prune, "queues": bad})).status == 400
        assert world.secondary.pruned == []
        done = (await world.act({**prune, "queues": dry["queues"]})).json
        assert done["text"] == "deleted 1"
        assert world.secondary.pruned == [("contoso", 2, dry["queues"])]
        (record,) = list(read(tmp_path))
        assert (record["state"], record["error"]) == ("prune", "asked by operator at 127.0.0.1")
        world.hosts.answers = []
        await asyncio.sleep(POLL_EVERY_S / 2)
        await world.live.refresh()
        gone = await world.act({**prune, "dry_run": True})
        assert gone.status == 409, "nobody tells how many queues the pair uses"


async def test_a_read_only_page_refuses_every_action(asked: list[Any]) -> None:
    world = World(is_read_only=True)
    for action in ("freeze", "pause", "replay", "prune", "rate", "note"):
        refused = await world.act({**FREEZE, "action": action})
        assert (refused.status, refused.json["ok"]) == (403, False)
    assert (await world.get("/api/view")).json["read_only"] is True
    assert asked == []


@pytest.mark.parametrize(
    "document",
    [
        [], "freeze", {}, {"action": "freeze"}, {**FREEZE, "path": 5}, {**FREEZE, "path": ""},
        {**FREEZE, "action": "rm -rf"}, {**FREEZE, "action": ["freeze"]},
        {"action": "replay", "pair": ID, "queue": "fabrikam/x-servicebus-transfer/0",
         "sequences": [1]},
        {"action": "replay", "pair": ID, "queue": "contoso/x-servicebus-transfer/0",
         "sequences": [True]},
        {"action": "replay", "pair": ID, "queue": "contoso/x-servicebus-transfer/0",
         "sequences": []},
        {"action": "pause", "pair": ID},
    ],
)  # fmt: skip
async def test_an_action_that_makes_no_sense_does_nothing(asked: list[Any], document: Any) -> None:
    world = World()
    refused = await world.act(document)
    assert 400 <= refused.status < 500
    assert refused.json["ok"] is False
    assert asked == []
    assert world.secondary.replayed == []


async def test_a_long_action_is_refused() -> None:
    world = World()
    await world.live.refresh()
    refused = await call(world.app, "POST", "/api/actions", ACTION, b"[" * 300_000)
    assert refused.status == 413
    deep = await call(world.app, "POST", "/api/actions", ACTION, b"[" * 200_000)
    assert deep.status == 400


async def test_dead_letters_are_replayed_by_the_operator(asked: list[Any]) -> None:
    world = World()
    queue = "contoso/x-servicebus-transfer/0"
    wanted = {"action": "replay", "pair": ID, "queue": queue, "sequences": [4, 5]}
    assert (await world.act(wanted)).json["text"] == "replayed 2"
    assert world.secondary.replayed == [(queue, [4, 5])]
    # It begins with the label, and is a queue of an application.
    refused = await world.act({**wanted, "queue": "contoso/orders"})
    assert refused.status == 400
    assert len(world.secondary.replayed) == 1


async def test_bodies_are_for_operators() -> None:
    world = World()
    await world.live.refresh()
    target = f"/api/dead-letters?pair={ID}&body=secret"
    seen = await world.get(target, VIEWER)
    assert b"secret" not in seen.body
    assert "body" not in world.secondary.searches[0]
    assert (await world.get(target)).json["letters"][0]["preview"] == "secret"
    assert world.secondary.searches[1]["body"] == "secret"
    one = f"/api/dead-letters/one?pair={ID}&queue=contoso/x-servicebus-transfer/0&sequence=4"
    assert (await world.get(one, VIEWER)).status == 403
    assert (await world.get(one)).json["body_text"] == "secret"
    assert (await world.get(one.replace("=4", "=5"))).status == 404
    assert (await world.get(one.replace("queue=contoso", "queue=other"))).status == 400
    # It begins with the label, and is a queue of an application.
    assert (await world.get(one.replace("x-servicebus-transfer/0", "orders"))).status == 400


async def test_searches_of_viewers_are_one_at_a_time_and_hold_up_no_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, go_on, letters = World(), asyncio.Event(), FakeSecondary.letters
    await world.live.refresh()

    async def slowly(*given: Any, with_bodies: bool) -> dict[str, Any]:
        if not with_bodies:
            await go_on.wait()
        return await letters(*given, with_bodies=with_bodies)

    monkeypatch.setattr(FakeSecondary, "letters", slowly)
    search = f"/api/dead-letters?pair={ID}"
    first = asyncio.create_task(world.get(search, VIEWER))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        second = await world.get(search, VIEWER)
        assert (second.status, "one at a time" in second.json["text"]) == (429, True)
        assert (await world.get(search)).status == 200
        assert (await world.get(f"/api/backlog?pair={ID}")).status == 200
        go_on.set()
        assert (await first).status == 200
    # A pause follows: each search is billed.
    assert (await world.get(search, VIEWER)).status == 429
    world.documents._viewers_at -= VIEWERS_PAUSE_S
    assert (await world.get(search, VIEWER)).status == 200


async def test_a_viewer_who_waits_for_counts_holds_up_no_operator() -> None:
    world = World()
    await world.live.refresh()
    entered, leave = asyncio.Event(), asyncio.Event()
    counted = world.secondary.queues

    async def slow(label: str) -> list[dict[str, Any]]:
        entered.set()
        await leave.wait()
        return await counted(label)

    world.secondary.queues = slow  # type: ignore[method-assign]
    async with asyncio.timeout(5):
        viewer = asyncio.create_task(world.get(f"/api/backlog?pair={ID}", VIEWER))
        await entered.wait()
        world.secondary.queues = counted  # type: ignore[method-assign]
        assert (await world.get(f"/api/backlog?pair={ID}")).status == 200
        leave.set()
        assert (await viewer).status == 200


async def test_names_with_markup_come_as_json_alone() -> None:
    world = World()
    seen = await world.get("/api/view")
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["x-content-type-options"] == "nosniff"
    assert [one["path"] for one in seen.json["pairs"][0]["entities"]] == ["orders", MARKUP]
    wrong = await world.get(f"/api/timeline?pair={MARKUP.replace(' ', '%20')}")
    assert wrong.headers["content-type"] == "application/json"
    assert b"<img" not in wrong.body


async def test_counts_are_asked_once_in_half_a_minute() -> None:
    world = World()
    await world.live.refresh()
    first = (await world.get(f"/api/backlog?pair={ID}")).json
    assert (await world.get(f"/api/backlog?pair={ID}", VIEWER)).json == first
    assert world.secondary.counts == 1
    assert first["queues"][0]["waiting"] == 12
    assert first["empty_in_s"] is None


@pytest.mark.parametrize("name", ["../__init__.py", "..%2f__init__.py", "nothing.js", "a.py", ""])
async def test_only_files_of_the_page_are_served(name: str) -> None:
    assert (await World().get(f"/static/{name}")).status == 404


async def frames_of(body: bytes) -> AsyncIterator[tuple[str, Any]]:
    for frame in body.decode().split("\n\n")[:-1]:
        kind, data = frame.split("\n", 1)
        yield kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_the_stream_sends_the_view_once_and_then_what_changed() -> None:
    world = World()
    headers = {"host": HOST, "authorization": f"Bearer {VIEWER}"}
    reading = asyncio.create_task(call(world.app, "GET", "/api/stream", headers, frames=3))
    await asyncio.sleep(0.3)
    world.hosts.answers = [answer(status(entity("orders", "suspect", since_s=0.1)), 1)]
    streamed = await reading
    assert streamed.headers["content-type"].startswith("text/event-stream")
    frames = [frame async for frame in frames_of(streamed.body)]
    kinds = [kind for kind, _ in frames]
    assert kinds[0] == "view"
    assert frames[0][1]["role"] == "viewer"
    assert kinds.count("view") == 1
    assert kinds.count("pair") == 1
    assert kinds.count("event") == 1
    assert kinds.count("head") == 2
    await asyncio.sleep(0)
    assert world.live.watchers == 0
    await world.live.close()


async def test_nothing_is_polled_while_nobody_watches() -> None:
    world = World()
    await asyncio.sleep(0)
    assert world.hosts.polls == 0
    await call(world.app, "GET", "/api/stream", {"host": HOST, "authorization": f"Bearer {VIEWER}"},
               frames=1)  # fmt: skip
    polls = world.hosts.polls
    await asyncio.sleep(1.5)
    assert world.hosts.polls <= polls + 1
    await world.live.close()


async def test_no_answer_holds_a_token() -> None:
    world = World()
    await world.live.refresh()
    for target in ("/api/view", "/api/events", f"/api/timeline?pair={ID}", "/", "/nothing"):
        seen = await world.get(target)
        text = seen.body.decode() + str(seen.headers)
        assert OPERATOR not in text
        assert VIEWER not in text
