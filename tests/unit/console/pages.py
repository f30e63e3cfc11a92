"""What holds for every page that the console makes."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

VOID = {"meta"}
SVG = "http://www.w3.org/2000/svg"


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
        self.loaded += [f"{tag} {name}" for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def assert_self_contained(page: str) -> None:
    """Well-formed, light and dark, and a policy lets nothing be loaded and no other script run."""
    balance = Balance()
    balance.feed(page)
    assert (balance.open, balance.loaded) == ([], [])
    assert "@import" not in page
    assert set(re.findall(r"url\([^)]*\)", page)) <= {"url(#hatch)"}
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= {SVG}
    assert "color-scheme: light dark" in page
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page, re.DOTALL)
    allowed = "default-src 'none'; style-src 'unsafe-inline'"
    for kind, text in scripts:
        if kind == ' type="module"':
            allowed += f"; script-src 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
        else:
            assert kind == ' type="application/json" id="outage-data"'
    assert f'<meta http-equiv="Content-Security-Policy" content="{allowed}">' in page
