"""Names with markup, viewers, a read-only page, peers that lie or hang, and the end of it all.

The pairs are sockets that a small program answers: there is no broker here.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from tests.browser.outage_world import Shown, shown_pairs
from tests.browser.steered_pair import ENTITY, MARKUP, NAME

pytestmark = pytest.mark.end_to_end

PATIENCE_MS = 60_000
OPERATOR, VIEWER = "operator-0123456789abcdef", "viewer-0123456789abcdef"
ENTITY_LIE = {
    "path": MARKUP, "state": "failed over", "states": [MARKUP], "since": 0, "since_s": None,
    "reason": MARKUP, "last_error": MARKUP, "forced": False, "frozen": True, "sent": 10**14,
    "diverted": -5, "raised": 0, "answered_pings": 0, "spans": [[0, 1e14, MARKUP]],
}  # fmt: skip
LIE = {
    "id": f"{MARKUP}.1", "kind": "pair", "name": MARKUP, "pid": 1, "host": MARKUP,
    "program": MARKUP, "primary": MARKUP, "secondary": MARKUP, "state": "running", "safe": True,
    "started_at": 1e14, "state_since": -1e14, "why": MARKUP, "safety": MARKUP,
    "attention": [MARKUP], "waiting": 10**14, "entities": [ENTITY_LIE],
    "queues": [{"queue": MARKUP, "state": "pulled", "reason": MARKUP}],
    "sends": [[1, 2, -3, 10**14]], "unseen": [[1e14, -1e14]],
}  # fmt: skip


ATTACK = """async ([page, body]) => {
  const tries = [
    { path: "api/view", options: {} },
    { path: "api/actions", options: { method: "POST", mode: "no-cors", body } },
    { path: "api/actions", options: {
      method: "POST", body, headers: { "Content-Type": "application/json", "X-Twinbus-Page": "1" },
    } },
  ];
  const read = [];
  for (const { path, options } of tries) {
    try {
      const answer = await fetch(page + path, { credentials: "include", ...options });
      read.push(await answer.text());
    } catch { read.push(""); }
  }
  return read;
}"""
"""What a script of another site may try with the cookie of an operator."""


class Site(BaseHTTPRequestHandler):
    """A page of another server on the same machine."""

    # With an icon of its own: the request for another might come among those of the script.
    body = b'<!doctype html><link rel="icon" href="data:,"><title>prizes</title>'

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None:
        pass


class Liar(Site):
    """A peer whose view is full of lies."""

    body = json.dumps({"pairs": [LIE, 5, {"name": MARKUP}], "headline": MARKUP}).encode()


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """The port of a server of its own for the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@contextmanager
def peers() -> Iterator[list[str]]:
    """The addresses of a peer that lies and of one that takes connections and says nothing."""
    with served(Liar) as liar, socket.create_server(("127.0.0.1", 0)) as hanging:
        ports = liar, hanging.getsockname()[1]
        yield [f"http://127.0.0.1:{port}/?token=secret-of-a-peer" for port in ports]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    directory = tmp_path_factory.mktemp("tokens")
    for role, token in (("operator", OPERATOR), ("viewer", VIEWER)):
        (directory / role).write_text(f"{token}\n")
    with peers() as addresses:
        options = [word for address in addresses for word in ("--peer", address)]
        tokens = [
            *("--operator-token-file", str(directory / "operator")),
            *("--viewer-token-file", str(directory / "viewer")),
        ]
        with shown_pairs(*tokens, *options) as running:
            yield running


@contextmanager
def opened(browser: Browser, address: str) -> Iterator[tuple[Page, list[str]]]:
    """A page in a window of its own, and what the browser complains of."""
    expect.set_options(timeout=PATIENCE_MS)
    context = browser.new_context()
    page = context.new_page()
    complaints: list[str] = []
    page.set_default_timeout(PATIENCE_MS)
    page.on("pageerror", lambda error: complaints.append(str(error)))

    def hear(said: ConsoleMessage) -> None:
        if said.type in {"error", "warning"}:
            complaints.append(f"{said.text} {said.location['url']}")

    page.on("console", hear)
    page.goto(address)
    yield page, complaints
    context.close()


def entity_button(page: Page) -> Any:
    return page.get_by_role("button", name=ENTITY, exact=True)


def test_markup_of_pairs_and_of_lying_peers_is_text_and_a_hanging_peer_hides_nothing(
    browser: Browser, world: Shown
) -> None:
    with opened(browser, f"{world.address}?token={OPERATOR}") as (page, complaints):
        expect(page.locator("#pair-name")).to_have_text(NAME)
        expect(entity_button(page)).to_be_visible()
        listed = page.locator("#pairs-list")
        expect(listed).to_contain_text(MARKUP)
        expect(page.locator("#peers-list")).to_contain_text("reachable: 2 pairs not shown: its")
        expect(page.locator("#peers-list")).to_contain_text("unreachable: timed out")
        listed.get_by_role("button").filter(has_text=MARKUP).first.click()
        expect(page.locator("#pair-home")).to_contain_text("read-only: a pair of another host")
        expect(page.locator("#cost")).to_be_hidden()
        expect(page.get_by_role("button", name="Pause…")).to_have_count(0)
        assert page.locator("img").count() == 0
        assert page.title() != "run"
        assert "secret-of-a-peer" not in page.content()
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert complaints == []


def test_a_viewer_sees_no_action_and_cannot_make_one(browser: Browser, world: Shown) -> None:
    with opened(browser, f"{world.address}?token={VIEWER}") as (page, complaints):
        expect(page.locator("#role")).to_have_text("viewer")
        entity_button(page).click()
        for name in ("Freeze…", "Force failover…", "Pause…", "Rate…", "Add a note…"):
            expect(page.get_by_role("button", name=name)).to_have_count(0)
        assert complaints == []
        answered = page.evaluate(
            """async (pair) => {
              const headers = { "Content-Type": "application/json", "X-Twinbus-Page": "1" };
              const body = JSON.stringify({ action: "freeze", pair, path: "orders" });
              const answer = await fetch("/api/actions", { method: "POST", headers, body });
              return [answer.status, await answer.text()];
            }""",
            page.evaluate("new URL(location.href).searchParams.get('pair')"),
        )
        assert answered[0] == 403
        assert "a viewer may not do this" in answered[1]


def test_an_operator_steers_what_a_read_only_page_only_shows(
    browser: Browser, world: Shown, tmp_path: Path
) -> None:
    with opened(browser, f"{world.address}?token={OPERATOR}") as (page, complaints):
        page.get_by_role("button", name="Rate…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Messages a second").fill("50")
        dialog.get_by_role("button", name="Set the rate").click()
        expect(page.locator("#backlog-facts")).to_contain_text("at most 50/s")
        page.get_by_role("button", name="Add a note…").click()
        dialog.get_by_label("Note").fill(MARKUP)
        dialog.get_by_role("button", name="Add", exact=True).click()
        events = page.get_by_role("list", name="Events")
        expect(events).to_contain_text(MARKUP)
        expect(events).to_contain_text("rate (asked by operator")
        assert complaints == []
    with (
        world.another_page("--read-only") as address,
        opened(browser, address) as (page, complaints),
    ):
        expect(page.locator("#role")).to_have_text("read-only")
        entity_button(page).click()
        for name in ("Freeze…", "Rate…", "Add a note…"):
            expect(page.get_by_role("button", name=name)).to_have_count(0)
        assert complaints == []


def test_a_script_of_another_site_neither_reads_nor_acts_with_an_operators_cookie(
    browser: Browser, world: Shown
) -> None:
    with (
        served(Site) as port,
        opened(browser, f"{world.address}?token={OPERATOR}") as (page, _),
    ):
        expect(entity_button(page)).to_be_visible()
        pair = page.evaluate("new URL(location.href).searchParams.get('pair')")
        # Only the port differs, so that the browser sends the cookie along.
        host = urlsplit(world.address).hostname
        other = page.context.new_page()
        other.goto(f"http://{host}:{port}/")
        # The browser hides the answers from that site's script, but not from its developer tools.
        tools, sent, answered = page.context.new_cdp_session(other), [], []
        tools.on("Network.requestWillBeSentExtraInfo", lambda one: sent.append(one["headers"]))
        tools.on(
            "Network.responseReceivedExtraInfo", lambda one: answered.append(one["statusCode"])
        )
        tools.send("Network.enable")
        body = json.dumps({"action": "pause", "pair": pair})
        assert other.evaluate(ATTACK, [world.address, body]) == ["", "", ""]
        assert any(OPERATOR in headers.get("Cookie", "") for headers in sent)
        assert answered == [403] * 3
        page.get_by_role("button", name="Add a note…").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Note").fill("after the attack")
        dialog.get_by_role("button", name="Add", exact=True).click()
        events = page.get_by_role("list", name="Events")
        expect(events).to_contain_text("after the attack")
        expect(events).not_to_contain_text("pause")
        expect(page.get_by_role("button", name="Pause…")).to_be_visible()


def test_the_end_of_a_pair_and_of_the_page_is_said(browser: Browser, world: Shown) -> None:
    with opened(browser, f"{world.address}?token={VIEWER}") as (page, complaints):
        expect(page.locator("#contact")).to_have_text("live")
        page.locator("#pairs-list").get_by_role("button").filter(has_text=NAME).first.click()
        end(world.program)
        expect(page.locator("#pair-chip")).to_have_text("no longer running")
        assert complaints == []
        end(world.page)
        expect(page.locator("#contact")).to_have_text("no contact")
        expect(page.locator("#headline")).to_contain_text("No contact with the server")
        expect(page.locator("#pair-name")).to_have_text(NAME)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
