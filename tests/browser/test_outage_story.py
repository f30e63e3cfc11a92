"""A real outage, followed on the page in a real browser: from healthy, through it, and home."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from azure.servicebus import ServiceBusMessage
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.outage_world import ENTITIES, LABEL, OutageWorld, outage_world
from tests.official_sdk import administration, client

pytestmark = pytest.mark.end_to_end

PATIENCE_MS = 90_000
SEARCHES_MAX = 60
WIDE = (1400, 1000)
NARROW = (400, 900)
PICTURES = Path(__file__).resolve().parents[2] / ".ci" / "out"
BAD_ID = "<img src=x onerror=\"document.title='run'\">"
A_NUMBER_ABOVE_0 = re.compile(r"[1-9]")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutageWorld]:
    with outage_world(tmp_path_factory.mktemp("page")) as running:
        yield running


class Viewer:
    """A person at the page: what they see, and what the browser complains of."""

    def __init__(self, page: Page, pictures: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self._pictures = pictures
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _heard(self, message: object) -> None:
        kind, text = getattr(message, "type", ""), getattr(message, "text", "")
        if kind in {"error", "warning"}:
            self.complaints.append(f"{kind}: {text}")

    def sees_headline(self, level: str, text: str) -> None:
        headline = self.page.locator("#headline")
        expect(headline).to_have_attribute("data-level", level)
        expect(headline.get_by_role("heading", level=1)).to_contain_text(text)

    def entity(self, path: str) -> Locator:
        return (
            self.page.get_by_role("list", name="Entities")
            .get_by_role("listitem")
            .filter(has=self.page.get_by_role("button", name=path, exact=True))
        )

    def sees_state(self, path: str, state: str) -> None:
        expect(self.entity(path).locator(".chip")).to_have_text(state)

    def fact(self, card: str, name: str) -> Locator:
        """The value of a term in the card with a title."""
        terms = self.page.get_by_role("region", name=card, exact=True).locator("dl > div")
        return terms.filter(has=self.page.get_by_text(name, exact=True)).locator("dd > span")

    def confirms(self, button: str, *said: str) -> None:
        """Answer the dialog, after reading what it says will happen."""
        dialog = self.page.get_by_role("dialog")
        for text in said:
            expect(dialog).to_contain_text(text)
        dialog.get_by_role("button", name=button, exact=True).click()
        expect(dialog).to_be_hidden()

    def finds_no_barrier(self) -> None:
        """axe-core finds nothing that keeps anybody out."""
        found = Axe().run(self.page)
        assert found.violations_count == 0, found.generate_report()

    def fits(self) -> None:
        width = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert width <= 0, f"the page is {width} px wider than the window"
        frame = self.page.locator("#queues-frame")
        hidden = frame.evaluate("(frame) => frame.scrollWidth - frame.clientWidth")
        assert hidden <= 0, f"{hidden} px of the backlog queues are out of sight"

    def takes_picture(self, name: str) -> None:
        self._pictures.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=self._pictures / f"page-{name}.png")


@pytest.fixture
def viewer(browser: Browser, world: OutageWorld, tmp_path: Path) -> Iterator[Viewer]:
    width, height = WIDE
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    expect.set_options(timeout=PATIENCE_MS)
    viewer = Viewer(page, PICTURES if os.environ.get("CI") else tmp_path)
    page.goto(world.address)
    yield viewer
    page.close()


def test_an_outage_is_watched_and_steered(world: OutageWorld, viewer: Viewer) -> None:
    viewer.sees_headline("healthy", "")
    for path in ENTITIES:
        viewer.sees_state(path, "healthy")
    expect(viewer.page.locator("#contact")).to_have_text("live")

    _undeliverable_message(world)
    _search_and_peek(viewer)

    world.primary.kill9()
    viewer.sees_headline("failed-over", "diverted")
    for path in ENTITIES:
        viewer.sees_state(path, "failed over")
    orders = viewer.entity("orders")
    expect(orders.locator(".span-failed-over")).not_to_have_count(0)
    expect(orders.locator(".figures b").nth(1)).to_have_text(A_NUMBER_ABOVE_0)
    expect(viewer.fact("Backlog", "Waiting")).to_have_text(A_NUMBER_ABOVE_0)
    _freeze(viewer)
    _looks(viewer)
    _unfreeze(viewer)
    _thinks_better_of_it(viewer)

    world.primary.restart()
    viewer.sees_headline("healthy", "")
    viewer.sees_state("orders", "healthy")
    expect(orders.locator(".span-failed-over")).not_to_have_count(0)
    expect(viewer.fact("Backlog", "Waiting")).to_have_text("0")
    _replay(world, viewer)
    _drain(viewer)

    world.program.kill()
    expect(viewer.page.locator("#pair-chip")).to_have_text("no longer running")
    viewer.sees_headline("none", "")
    viewer.finds_no_barrier()
    assert viewer.complaints == []


def _undeliverable_message(world: OutageWorld) -> None:
    """Put a message for a queue that does not exist yet into the backlog."""
    queue = f"{LABEL}/x-servicebus-transfer/0"
    with client(world.secondary.connection_string()) as sdk, sdk.get_queue_sender(queue) as sender:
        message = ServiceBusMessage("for a late queue", message_id=BAD_ID)
        message.application_properties = {"x-ms-path": "late"}
        sender.send_messages(message)


def _search_and_peek(viewer: Viewer) -> None:
    card = viewer.page.get_by_role("region", name="Dead letters", exact=True)
    card.get_by_label("Entity").fill("late")
    row = card.get_by_role("row").filter(has_text=BAD_ID)
    for _ in range(SEARCHES_MAX):
        card.get_by_role("button", name="Search").click()
        expect(card.locator("#letters-say")).not_to_have_text("Searching…")
        if row.count():
            break
        viewer.page.wait_for_timeout(1_000)
    expect(row).to_contain_text("DestinationNotFound")
    row.get_by_role("button", name="Show").click()
    dialog = viewer.page.get_by_role("dialog")
    expect(dialog).to_contain_text("for a late queue")
    dialog.get_by_role("button", name="Close").click()


def _looks(viewer: Viewer) -> None:
    """Light and dark, wide and narrow: nobody is kept out and nothing hangs over."""
    page = viewer.page
    page.mouse.move(0, 0)
    expect(page.locator("#toast")).to_be_empty()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for name, (width, height) in (("wide", WIDE), ("narrow", NARROW)):
            page.set_viewport_size({"width": width, "height": height})
            viewer.fits()
            viewer.finds_no_barrier()
            page.evaluate("scrollTo(0, 0)")
            viewer.takes_picture(f"outage-{scheme}-{name}")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})


def _freeze(viewer: Viewer) -> None:
    payments = viewer.entity("payments")
    payments.get_by_role("button", name="payments", exact=True).click()
    payments.get_by_role("button", name="Freeze…").click()
    viewer.confirms("Freeze", "to the backlog", "No failover timer and no ping")
    viewer.sees_state("payments", "failed over, frozen")
    expect(payments.locator(".span-frozen")).not_to_have_count(0)
    expect(viewer.page.get_by_role("list", name="Events")).to_contain_text("freeze payments")
    payments.get_by_role("button", name="payments", exact=True).click()


def _unfreeze(viewer: Viewer) -> None:
    payments = viewer.entity("payments")
    payments.get_by_role("button", name="payments", exact=True).click()
    payments.get_by_role("button", name="Unfreeze…").click()
    viewer.confirms("Unfreeze", "return to the primary")


def _thinks_better_of_it(viewer: Viewer) -> None:
    """Escape closes a confirmation; nothing is done, and the focus is where it was."""
    card = viewer.page.get_by_role("region", name="Backlog", exact=True)
    card.get_by_role("button", name="Drain once…").click()
    dialog = viewer.page.get_by_role("dialog")
    expect(dialog).to_contain_text("moves the backlog of contoso to the primary")
    viewer.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(card.get_by_role("button", name="Drain once…")).to_be_focused()
    expect(viewer.page.get_by_role("list", name="Events")).not_to_contain_text("drain-once")
    proof = viewer.page.get_by_role("region", name="Proof", exact=True)
    expect(proof).to_contain_text("No proof was made yet")


def _drain(viewer: Viewer) -> None:
    """A drain that the page starts ends with an event, whichever program moved the messages."""
    viewer.page.get_by_role("button", name="Drain one entity…").click()
    viewer.page.get_by_role("dialog").get_by_label("Entity").select_option("orders")
    viewer.confirms("Start", "moves the messages of this entity")
    events = viewer.page.get_by_role("list", name="Events")
    expect(events).to_contain_text("only-entity orders (asked by operator")
    expect(events).to_contain_text("only-entity ended: drained")


def _replay(world: OutageWorld, viewer: Viewer) -> None:
    with administration(world.primary.connection_string()) as admin:
        admin.create_queue("late")
    card = viewer.page.get_by_role("region", name="Dead letters", exact=True)
    card.get_by_role("checkbox", name=f"Select {BAD_ID}").check()
    card.get_by_role("button", name="Replay 1 dead letter…").click()
    viewer.confirms("Replay", "back into the backlog queue")
    with (
        client(world.primary.connection_string()) as sdk,
        sdk.get_queue_receiver("late") as receiver,
    ):
        (message,) = receiver.receive_messages(max_wait_time=PATIENCE_MS / 1000)
        assert message.message_id == BAD_ID
