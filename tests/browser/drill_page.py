"""`twinbus drill --page` with a person at its terminal, and the pictures of the README.

python -m tests.browser.drill_page     runs a drill and takes the pictures of docs/images
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, ViewportSize, expect

from tests.browser.conftest import chromium

ADDRESS = re.compile(r"https?://\S+token=\S+")
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
PATIENCE_MS = 120_000
WIDE, NARROW = ViewportSize(width=1400, height=1000), ViewportSize(width=400, height=900)


@dataclass(frozen=True, slots=True)
class PlayedDrill:
    """A drill that runs, and its page."""

    process: subprocess.Popen[str]
    address: str
    terminal: int
    """The other end of the drill's stdin."""

    def press_enter(self) -> int:
        """End the page; return the exit status of the drill."""
        os.write(self.terminal, b"\n")
        return self.process.wait(PATIENCE_MS / 1000)


@contextmanager
def played_drill(directory: Path, *arguments: str) -> Iterator[PlayedDrill]:
    """Start a drill; its page answers when the block begins."""
    sockets = tempfile.mkdtemp(prefix="tb-")
    terminal, stdin = pty.openpty()
    command = ["drill", "--page", "--report", str(directory / "report"), *arguments]
    environment = {**os.environ, "TWINBUS_RUN_DIR": sockets}
    # No browser but the test's own.
    environment = {name: text for name, text in environment.items() if "DISPLAY" not in name}
    with subprocess.Popen(
        # The script itself: the page shows its name.
        [Path(sys.executable).with_name("twinbus"), *command],
        env=environment, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            found = next(filter(None, map(ADDRESS.search, lines)))
            yield PlayedDrill(process, found.group(), terminal)
        finally:
            process.terminate()
            process.wait()
            os.close(terminal)
            os.close(stdin)
            Path(sockets).rmdir()


def take_pictures(page: Page, drill: PlayedDrill) -> None:
    """Follow the drill into its outage and take the pictures."""
    page.set_viewport_size(WIDE)
    page.goto(drill.address)
    page.get_by_text("2 min", exact=True).click()
    expect(page.locator("#headline")).to_have_attribute("data-level", "failed-over")
    # Some seconds of it, with pings that nobody answers.
    expect(page.locator("#entities .mark-ping-failed").nth(8)).to_be_attached()
    expect(page.locator("#cost-facts")).to_contain_text("This outage so far")
    page.screenshot(path=IMAGES / "page-outage.png")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(NARROW)
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / "page-outage-narrow.png")


def main() -> None:
    expect.set_options(timeout=PATIENCE_MS)
    drill = "--messages", "12000", "--outage", "30s"
    with (
        tempfile.TemporaryDirectory() as directory,
        chromium() as browser,
        played_drill(Path(directory), *drill) as played,
    ):
        take_pictures(browser.new_page(color_scheme="light"), played)


if __name__ == "__main__":
    main()
