"""The site: builds without a warning, loads nothing from elsewhere, and no link in it is dead."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from blocks import DOCS, ROOT, pages

LOADING = {
    ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("audio", "src"),
    ("embed", "src"), ("object", "data"), ("form", "action"), ("use", "href"),
}  # fmt: skip
OUTSIDE = re.compile(r"^(?:https?:)?//")


class Reader(HTMLParser):
    """What a page loads, where its links lead, and which places it has."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.title = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.loads += [value for name, value in given.items() if (tag, name) in LOADING]
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given.get("href", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if "style" in given:
            self.loads += re.findall(r"url\(['\"]?([^)'\"]+)", given["style"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without a network: proxies lead nowhere."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=os.environ | nowhere | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert "is not found" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def read(site: Path) -> dict[Path, Reader]:
    found = {}
    for page in sorted(site.rglob("*.html")):
        found[page] = Reader()
        found[page].feed(page.read_text(encoding="utf-8"))
    return found


def test_each_page_is_there(site: Path) -> None:
    missing = [
        page.name for page in pages() if not (site / page.relative_to(DOCS).with_suffix(".html")).is_file()
    ]  # fmt: skip

    assert missing == []


def test_nothing_is_loaded_from_elsewhere(site: Path, read: dict[Path, Reader]) -> None:
    loaded = [f"{page.name}: {what}" for page, found in read.items() for what in found.loads if OUTSIDE.match(what)]
    styles = [
        f"{sheet.name}: {what}"
        for sheet in site.rglob("*.css")
        for what in re.findall(r"(?:url\(|@import )['\"]?([^)'\";]+)", sheet.read_text(encoding="utf-8"))
        if OUTSIDE.match(what)
    ]

    assert loaded + styles == []


def test_no_link_is_dead(site: Path, read: dict[Path, Reader]) -> None:
    dead = []
    for page, found in read.items():
        if page.name == "404.html":  # its links begin at the root of a server
            continue
        for link in {*found.links, *found.loads}:
            if re.match(r"[a-z]+:|//", link):
                continue
            path, _, place = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists():
                dead.append(f"{page.name} -> {link}")
            elif place and target in read and place not in read[target].places and place != "__top":
                dead.append(f"{page.name} -> {link}: no such place")

    assert dead == []


def test_words_of_pages_can_be_searched_for(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))

    assert any("format-overflow" in entry["text"] for entry in index["docs"])
    assert len({entry["location"].partition("#")[0] for entry in index["docs"]}) >= len(pages())


def test_every_page_is_in_the_navigation(site: Path, read: dict[Path, Reader]) -> None:
    home = read[site / "index.html"]
    reached, left = set(), [site / "index.html"]
    while left:
        page = left.pop()
        if page in reached or page not in read:
            continue
        reached.add(page)
        left += [
            (page.parent / link.partition("#")[0]).resolve() for link in read[page].links if not OUTSIDE.match(link)
        ]

    assert home.links
    assert {page.name for page in read} - {page.name for page in reached} <= {"404.html"}
