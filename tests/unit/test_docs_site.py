"""The site of docs/ (`make docs`): it is built, and all that its pages refer to is on it."""

from __future__ import annotations

import re
import shutil
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import docs_site

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.xdist_group("docs_site")
"""One worker builds the site, once."""

LOADS = {("img", "src"), ("link", "href"), ("script", "src")}
"""What a browser fetches without being asked."""


class Page(HTMLParser):
    """The headings, links and files of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id":
                self.ids.add(value)
            elif (tag, name) in LOADS and dict(attrs).get("rel") != "canonical":
                self.loaded.append(value)
            elif name == "href":
                self.links.append(value)


def broken(site: Path) -> list[str]:
    """What the pages of a site refer to and is not there, or is loaded from elsewhere."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        name = path.relative_to(site)
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    found.append(f"{name} loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{name} links to {link}")
            elif parts.fragment and target in pages:
                if unquote(parts.fragment) in pages[target].ids:
                    continue
                found.append(f"{name} links to {link}, which has no such heading")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    out = tmp_path_factory.mktemp("docs")
    assert docs_site.build(out) == 0
    return out / "site"


def test_every_link_of_the_site_leads_somewhere_and_nothing_is_loaded_from_elsewhere(
    site: Path,
) -> None:
    assert len(list(site.rglob("*.html"))) > 25
    assert broken(site) == []
    # The check itself finds what is wrong.
    page = site / "planted.html"
    page.write_text(
        '<a href="gone.html">a</a><a href="index.html#gone">b</a><a href="#here">c</a>'
        '<h2 id="here">d</h2><script src="https://example.com/x.js"></script>'
    )
    assert broken(site) == [
        "planted.html links to gone.html",
        "planted.html links to index.html#gone, which has no such heading",
        "planted.html loads https://example.com/x.js",
    ]
    page.unlink()


def test_every_page_is_of_one_of_four_kinds() -> None:
    nav = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text())["project"]["nav"]
    found = list(docs_site.entries(nav))
    assert {kind for kind, _, _ in found} == {"Tutorial", "How-to", "Explanation", "Reference"}
    assert sorted(page for _, _, page in found) == sorted(docs_site.site_paths().values())


def test_llms_txt_has_every_page_with_a_sentence(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    assert text.startswith("# Twinbus\n\n> Keeps an application able to send")
    lines = re.findall(r"^- \[(.+?)\]\((\S+)\): (.+)$", text, re.MULTILINE)
    listed = {page for _, page, _ in lines}
    assert listed == set(docs_site.site_paths().values())
    assert all((site / page).is_file() for page in listed)
    assert [page for _, page, sentence in lines if len(sentence) < 20 or "](" in sentence] == []


def test_a_link_to_a_missing_page_fails_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "repository"
    (small / "docs").mkdir(parents=True)
    shutil.copyfile(ROOT / "docs" / "zensical.toml", small / "docs" / "zensical.toml")
    settings = re.sub(
        r"nav = \[.*?^\]",
        'nav = [\n  { "Start" = [{ "Home" = "index.md" }] },\n]',
        (small / "docs" / "zensical.toml").read_text(),
        flags=re.DOTALL | re.MULTILINE,
    )
    (small / "docs" / "zensical.toml").write_text(settings)
    monkeypatch.setattr(docs_site, "ROOT", small)
    monkeypatch.setattr(docs_site, "GENERATED", {})
    (small / "docs" / "index.md").write_text("# Home\n\nA [heading](other.md#there).\n")
    (small / "docs" / "other.md").write_text(
        "# Other\n\n## There\n\nA page that no section names.\n"
    )
    assert docs_site.build(tmp_path / "good") == 0
    assert '"Other" = "other.md"' in (tmp_path / "good" / "zensical.toml").read_text()
    (small / "docs" / "other.md").write_text(
        "# Other\n\n## Elsewhere\n\nIts heading has changed.\n"
    )
    assert docs_site.build(tmp_path / "bad") != 0


def test_a_link_to_a_file_that_is_not_on_the_site_becomes_text() -> None:
    pages = docs_site.site_paths()
    architecture = docs_site.page_text("docs/architecture.md", pages)
    assert "](../tests/" not in architecture
    assert "test_layout.py" in architecture
    assert "](reporting.md)" in docs_site.page_text("docs/security.md", pages)
    assert "](security.md)" in docs_site.page_text("SECURITY.md", pages)
    assert "](deploy.md)" in docs_site.page_text("docs/production.md", pages)
