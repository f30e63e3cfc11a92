"""Builds the site of docs/ with Zensical: `make docs`.

    docs/**                     pages at their own path
    api.md, commands.md, ...    written from the code, see docs_pages
    CHANGELOG.md, deploy/...    pages too, see ELSEWHERE
    links to other files        become text: the site has no source code
    llms.txt                    every page with its first sentence, for programs that read Markdown

Zensical refuses a link to a page or a heading that does not exist (`--strict`).
"""

from __future__ import annotations

import argparse
import os.path
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

from docs_pages import GENERATED

ROOT: Final = Path(__file__).resolve().parents[1]
SETTINGS: Final = "zensical.toml"
ELSEWHERE: Final = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "deploy/README.md": "deploy.md",
}
"""Pages that are not in docs/: where they are in the repository and on the site."""

MORE: Final = "More"
SUMMARY_MIN: Final = 20
"""Characters of a first sentence: the word "Decision." alone says nothing."""

_LINK: Final = re.compile(r"(!?)\[([^][]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
_FENCED: Final = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def main() -> int:
    """0: the site is there; else the exit status of Zensical, which named what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs")
    return build(parser.parse_args().out.resolve())


def build(out: Path) -> int:
    """Stage the pages in `out`, and build `out`/site from them."""
    shutil.rmtree(out, ignore_errors=True)
    stage(out)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    status = subprocess.run(command, cwd=out, check=False).returncode
    if status == 0:
        _add_markdown(out)
        print(f"docs: {out / 'site' / 'index.html'}")
    return status


def stage(out: Path) -> None:
    """Write the pages, the other files of docs/ and the settings as Zensical reads them."""
    pages = site_paths()
    for source, page in pages.items():
        target = out / "docs" / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page_text(source, pages))
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.is_file() and path.suffix != ".md" and path.name != SETTINGS:
            target = out / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    settings = (ROOT / "docs" / SETTINGS).read_text()
    (out / SETTINGS).write_text(with_all_pages(settings, pages, out / "docs"))


def site_paths() -> dict[str, str]:
    """Return the path of every page on the site, by its path in the repository.

    A page that is written from the code has the path that it would have.
    """
    found = sorted((ROOT / "docs").rglob("*.md"))
    pages = {str(path.relative_to(ROOT)): str(path.relative_to(ROOT / "docs")) for path in found}
    pages |= {f"docs/{page}": page for page in GENERATED}
    return pages | {source: page for source, page in ELSEWHERE.items() if (ROOT / source).exists()}


def page_text(source: str, pages: dict[str, str]) -> str:
    """Return a page with links that hold on the site; blocks of code stay as they are."""
    written = GENERATED.get(pages[source])
    parts = _FENCED.split(written() if written else (ROOT / source).read_text())
    return "".join(
        part
        if part.startswith("```")
        else _LINK.sub(lambda link: _moved(link, source, pages), part)
        for part in parts
    )


def _moved(link: re.Match[str], source: str, pages: dict[str, str]) -> str:
    mark, text, target, anchor = link[1], link[2], link[3], link[4] or ""
    aim = os.path.normpath(os.path.join(os.path.dirname(source), target))
    here = os.path.dirname(pages[source])
    if aim in pages:
        return f"{mark}[{text}]({os.path.relpath(pages[aim], here)}{anchor})"
    if aim.startswith("docs/") and (ROOT / aim).is_file():
        return f"{mark}[{text}]({os.path.relpath(aim.removeprefix('docs/'), here)}{anchor})"
    return text if PurePosixPath(aim).name in text else f"{text} (`{aim}`)"


def with_all_pages(settings: str, pages: dict[str, str], docs: Path) -> str:
    """Return the settings with the pages that the navigation does not name, under "More"."""
    nav: list[Any] = tomllib.loads(settings)["project"]["nav"]
    named = {page for _, _, page in entries(nav)}
    rest = sorted(set(pages.values()) - named)
    if not rest:
        return settings
    more = f'  {{ "{MORE}" = [{", ".join(_entry(page, docs) for page in rest)}] }},'
    head, bracket, tail = settings.partition("\n]\n")
    return f"{head}\n{more}{bracket}{tail}"


def _entry(page: str, docs: Path) -> str:
    title = title_of((docs / page).read_text()).replace('"', "'")
    return f'{{ "{title}" = "{page}" }}'


def entries(nav: list[Any], section: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield section, title and page of everything in a navigation."""
    for entry in nav:
        for title, below in entry.items():
            if isinstance(below, str):
                yield section, title, below
            else:
                yield from entries(below, title)


def title_of(text: str) -> str:
    """Return the heading of a page, without the marks of code."""
    return text.partition("\n")[0].removeprefix("# ").replace("`", "")


def summary_of(text: str) -> str:
    """Return the first sentence of a page, without links and marks."""
    paragraphs = (part.strip() for part in text.split("\n\n")[1:])
    first = next((part for part in paragraphs if part[:1].isalnum() or part[:1] in "`*["), "")
    plain = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    sentences = re.split(r"(?<=[.]) (?=[A-Z`])", plain.replace("**", ""))
    whole = next((at for at, one in enumerate(sentences, 1) if len(one) >= SUMMARY_MIN), 1)
    return " ".join(sentences[:whole]).rstrip(":")


def _add_markdown(out: Path) -> None:
    """Write llms.txt, and each page as Markdown beside its HTML."""
    project = tomllib.loads((out / SETTINGS).read_text())["project"]
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}"]
    section = ""
    for here, title, page in entries(project["nav"]):
        text = (out / "docs" / page).read_text()
        target = out / "site" / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        if here != section:
            lines += ["", f"## {here}", ""]
            section = here
        lines.append(f"- [{title}]({page}): {summary_of(text)}")
    (out / "site" / "llms.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
