"""The grid of ranks in a real browser: its tips by keyboard and without scripts, and no tip outside the window."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from test_rank_grid import blaming, job

from hypocenter.report.formats import html

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")]


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks") / "report.html"
    path.write_text(html.render(job(tp=8, dp=2, pp=2, bad={20: 1}), blaming(20)), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [1300, 700])
@pytest.mark.parametrize("has_scripts", [True, False])
def test_focus_on_a_cell_shows_its_details(page_path: Path, width: int, has_scripts: bool) -> None:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": width, "height": 900}, java_script_enabled=has_scripts)
        page = context.new_page()
        page.goto(page_path.as_uri())
        assert page.locator("table.ranks .tip").filter(visible=True).count() == 0

        page.locator("table.ranks td[tabindex]").nth(26).focus()
        page.keyboard.press("Tab")

        tip = page.locator("table.ranks td[tabindex]").nth(27).locator(".tip")
        assert tip.is_visible()
        assert tip.inner_text().split("\n")[:2] == ["rank 27", "tp 3, pp 1, dp 1"]
        box = tip.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        browser.close()
