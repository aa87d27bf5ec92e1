"""The page of headroom in a real browser: another format, another order, a part of a name; and without scripts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from headroom_fakes import row, table
from test_page_in_browser import browser, opened, pytestmark, sync_api  # noqa: F401

from hypocenter.formats import find_format
from hypocenter.report.headroom.answer import answers
from hypocenter.report.headroom.html import html
from hypocenter.report.headroom.scaled import answer as scaled_answer
from hypocenter.summary.scaled_formats import SCALED

ROWS = [
    row(np.linspace(1.0, top, 64), site=f"layers.{i}.ff", phase="forward", order=i)
    for i, top in enumerate((300.0, 60000.0, 90000.0))
]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("headroom") / "headroom.html"
    told = answers(table(ROWS), [], [find_format(name) for name in ("fp16", "bf16")])
    path.write_text(html(told, "run", [scaled_answer(table(ROWS), SCALED["mxfp8"])]), encoding="utf-8")
    return path


def test_formats_are_switched_sorted_and_searched(browser: sync_api.Browser, page_file: Path) -> None:  # noqa: F811
    with opened(browser, page_file) as watched:
        page = watched.page

        def modules() -> list[str]:
            return page.locator(".phase summary code").all_inner_texts()

        by_risk, in_half = modules(), page.locator("#answer h2").inner_text()
        page.get_by_label("bfloat16").check()
        in_bf16, bad = page.locator("#answer").get_attribute("class"), page.locator("tr.bad").count()
        page.get_by_label("sort by").select_option("order")
        in_order = modules()
        page.get_by_label("mxfp8").check()
        heads = page.locator("table.sites").first.locator("th.num").all_text_contents()
        page.get_by_label("find").fill("layers.2")

        assert by_risk == ["layers.2", "layers.1", "layers.0"]
        assert "1 of 3 sites would overflow" in in_half
        assert (in_bf16, bad) == ("card healthy", 0)
        assert in_order == ["layers.0", "layers.1", "layers.2"]
        assert heads == ["zero at least", "about", "at most"]
        assert [one.is_visible() for one in page.locator(".phase details").all()] == [False, False, True]
        assert watched.complaints == []


def test_without_scripts_the_format_that_was_asked_about_is_there(browser: sync_api.Browser, page_file: Path) -> None:  # noqa: F811
    with opened(browser, page_file, java_script_enabled=False) as watched:
        assert not watched.page.locator("#controls").is_visible()
        assert watched.page.locator("tr.bad").inner_text().split()[:4] == ["layers.2.ff", "out[0]", "-0.5", "bits"]
        assert watched.page.locator("tr.bad svg.cells path.overflow").count() == 1
