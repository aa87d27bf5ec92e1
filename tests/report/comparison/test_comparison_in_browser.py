"""The page of a comparison in a real browser: drawn, clickable, filtered, silent, offline, by keyboard, narrow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from made_comparison import diverged, hostile, same

from hypocenter.compare.comparison import Comparison
from hypocenter.report.comparison import html

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")]

TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
COLOURS = """canvas => { const g = canvas.getContext("2d"), d = g.getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Set();
  for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) seen.add([d[i], d[i+1], d[i+2]].join());
  return [...seen]; }"""
RED, GREEN = "179,38,30", "17,99,41"  # --differs and --equal of the light theme
FITS = "document.documentElement.scrollWidth <= innerWidth"


class Watched:
    """A page, and everything it should not have done."""

    def __init__(self, page: sync_api.Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._note_request(request.url))

    def _note_request(self, url: str) -> None:
        if not url.startswith("file:"):
            self.complaints.append(f"asked for {url[:200]}")


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextmanager
def opened(browser: sync_api.Browser, path: Path, *, width: int = 1300, **options: object) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": width, "height": 900}, **{"color_scheme": "light", **options})
    watched = Watched(context.new_page())
    watched.page.goto(path.as_uri())
    yield watched
    context.close()


def written(folder: Path, made: tuple) -> Path:
    path = folder / "report.html"
    path.write_text(html.render(*made), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("diff"), diverged())


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So many modules that not all are open at first, and the first divergence far down."""
    return written(tmp_path_factory.mktemp("large"), diverged(n_blocks=60, at=50))


def chosen(watched: Watched) -> str:
    return watched.page.locator(".tree-line.chosen .name").first.inner_text()


def test_page_is_drawn_without_a_complaint_or_a_request(browser, page_file):
    with opened(browser, page_file) as watched:
        watched.page.wait_for_selector(".errors canvas")
        watched.page.evaluate(TWO_FRAMES)
        colours = watched.page.eval_on_selector(".errors canvas", COLOURS)

        assert RED in colours
        assert GREEN in colours
        assert watched.page.locator(".tree-line.first .flag").inner_text() == "▶ first"
        assert watched.page.evaluate(FITS)
        assert watched.complaints == []


def test_card_is_readable_without_scripts(browser, page_file):
    with opened(browser, page_file, java_script_enabled=False) as watched:
        card, rest = watched.page.locator(".card.error").inner_text(), watched.page.locator("noscript").inner_text()

        assert "diverged at step 0, forward: layers.2.norm out[0]" in card
        assert "model.py:61" in card
        assert "config-mismatch (proven)" in card
        assert "layers.2.norm out[0]" in rest
        assert watched.page.locator("svg.ruler").count() == 1


def test_first_divergence_is_in_sight_in_a_large_tree(browser, large_file):
    with opened(browser, large_file) as watched:
        line = watched.page.locator(".tree-line.first")
        line.wait_for()
        watched.page.evaluate(TWO_FRAMES)
        trees, mark = watched.page.locator(".trees").bounding_box(), line.bounding_box()

        assert trees["y"] < mark["y"] < trees["y"] + trees["height"] - mark["height"]
        assert watched.page.locator(".tree-line").count() < 100
        watched.page.get_by_text("open all").click()
        assert watched.page.locator(".tree-line").count() > 300
        watched.page.get_by_text("shut all").click()
        watched.page.locator(".to-first").click()
        assert chosen(watched) == "norm"
        assert watched.complaints == []


def test_every_module_is_marked_by_a_sign_not_by_colour_alone(browser, page_file):
    with opened(browser, page_file) as watched:
        watched.page.wait_for_selector(".tree-line")
        marks = watched.page.locator(".tree-line .mark").all()
        said = {(mark.inner_text(), mark.get_attribute("aria-label").split(";")[0]) for mark in marks}

        assert {("=", "equal"), ("≠", "differs"), ("∅", "unmatched")} == said
        assert (
            watched.page.locator(".tree-line", has_text="not in this run").first.locator(".nothing").inner_text()
            == "not in this run"
        )
        assert "fused" in watched.page.locator(".tree-line", has_text="qkv").nth(1).locator(".link").inner_text()
        assert watched.page.locator(".name.part").first.inner_text().startswith("↳")


def test_keys_walk_the_tree(browser, page_file):
    with opened(browser, page_file) as watched:
        watched.page.locator(".tree-line.chosen").focus()
        watched.page.keyboard.press("Home")
        top = chosen(watched)
        n_open = watched.page.locator(".tree-line").count()
        watched.page.keyboard.press("ArrowLeft")
        n_shut = watched.page.locator(".tree-line").count()
        watched.page.keyboard.press("ArrowRight")
        watched.page.keyboard.press("ArrowDown")

        assert top == "(model)"
        assert n_shut == 1
        assert watched.page.locator(".tree-line").count() == n_open
        assert chosen(watched) == "layers.0"
        assert watched.page.evaluate("document.activeElement.getAttribute('aria-level')") == "2"
        assert watched.complaints == []


def test_pointer_on_the_chart_names_the_site_and_a_click_chooses_its_module(browser, page_file):
    with opened(browser, page_file) as watched:
        over = watched.page.locator(".errors .u-over")
        over.wait_for()
        width = over.bounding_box()["width"]
        over.hover(position={"x": width * 2.5 / 21, "y": 200})
        tip = watched.page.locator(".errors .tip").inner_text()
        over.click(position={"x": width * 2.5 / 21, "y": 200})

        assert "layers.0.attn.q out[0] + layers.0.attn.k out[0]" in tip
        assert "= equal: error 0, floor 2^-20" in tip
        assert chosen(watched) == "q"
        assert "concatenated" in watched.page.locator(".inspector").inner_text()
        watched.page.locator(".errors").press("ArrowLeft")
        assert chosen(watched) == "norm"
        assert watched.complaints == []


def test_rows_are_filtered_and_sorted(browser, page_file):
    with opened(browser, page_file) as watched:
        rows = watched.page.locator("table.rows tbody tr")
        rows.first.wait_for()
        at_first = rows.first.inner_text()
        watched.page.locator(".filter.equal").click()
        all_rows = rows.count()
        watched.page.locator(".filter.differs").click()
        watched.page.locator(".filter.unmatched").click()
        good = rows.count()
        watched.page.locator(".filter.differs").click()
        watched.page.locator(".filters select").select_option("grad")
        grads = rows.count()
        watched.page.locator(".filters select").select_option("")
        watched.page.locator("input[type=search]").fill("LAYERS.3.attention")
        some = rows.all_inner_texts()
        watched.page.locator("input[type=search]").fill("")
        watched.page.locator("th button", has_text="error / floor").click()

        assert "layers.2.norm out[0]" in at_first
        assert (all_rows, good, grads) == (23, 9, 4)
        assert len(some) == 2
        assert all("attention" in text for text in some)
        assert watched.page.locator("th[aria-sort=descending]").inner_text().startswith("error / floor")
        assert "differs" in rows.first.inner_text()
        assert watched.complaints == []


def test_a_row_chooses_its_module_and_views_keep_it(browser, page_file):
    with opened(browser, page_file) as watched:
        watched.page.locator("table.rows tbody tr", has_text="layers.3.norm out[0]").click()
        watched.page.locator(".switch button", has_text="all steps").click()

        assert chosen(watched) == "norm"
        assert "step 2, micro-batch 0" in watched.page.locator(".inspector .detail").inner_text()
        assert "layers.3.norm" in watched.page.locator(".inspector dl").first.inner_text()
        assert watched.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["same", "hostile", "nothing", "narrow", "dark", "not finite"])
def test_page_is_right_for_anything(browser, tmp_path, name):
    found, material = diverged()
    worst = replace(
        found.first.row, distance=replace(found.first.row.distance, relative=float("inf"), high=float("nan"))
    )
    made = {
        "same": same(), "hostile": hostile(), "nothing": (Comparison(sentence="cannot tell: nothing"),),
        "not finite": (replace(found, rows=(worst,)), replace(material, scene=replace(material.scene, rows=(worst,)))),
    }.get(name, (found, material))  # fmt: skip
    options = {"narrow": {"width": 420}, "dark": {"color_scheme": "dark"}}.get(name, {})

    with opened(browser, written(tmp_path, made), **options) as watched:
        watched.page.get_by_text("unpacking").wait_for(state="detached")
        watched.page.wait_for_selector(".tree-line")
        watched.page.evaluate(TWO_FRAMES)

        assert watched.page.evaluate("window.pwned") is None
        assert watched.page.locator("img").count() == 0
        assert watched.page.evaluate(FITS)
        assert watched.complaints == []
