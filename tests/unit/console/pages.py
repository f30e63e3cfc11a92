"""What holds for every page that the console makes."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta"}


class Balance(HTMLParser):
    """Finds tags that are not closed in order, and everything that would be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.loaded += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href"}]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def assert_self_contained(page: str) -> None:
    """Well-formed, light and dark, and nothing in it is loaded from elsewhere."""
    balance = Balance()
    balance.feed(page)
    assert (balance.open, balance.loaded) == ([], [])
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in page
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme:dark" in page
