"""Every page that is written, judged by what WCAG 2.1 AA asks and a program can tell (accessibility.js)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from curves_fakes import answer as curves_answer
from headroom_fakes import sample
from made_comparison import diverged
from report_fakes import CANNOT_TELL, FINDINGS, HEALTHY, FakeRecording, planted
from test_diary_on_page import overflow, scaled_run
from test_page_in_browser import ACCESSIBILITY, browser, pytestmark, sync_api  # noqa: F401
from test_rank_grid import blaming, job

from hypocenter.align.alignment import STAGES, result
from hypocenter.align.engine import alignment_of
from hypocenter.align.plan import plan_of
from hypocenter.nouns import StepRecord
from hypocenter.report import curves_html
from hypocenter.report.alignment import html as alignment_html
from hypocenter.report.answer.rendering import render
from hypocenter.report.comparison import html as comparison_html
from hypocenter.report.formats import html
from hypocenter.report.headroom.html import html as headroom_html


def of_run() -> str:
    rows = [(0, row) for row in planted(9)]
    return html.render(
        FakeRecording(rows=rows, step_rows=[StepRecord(step=s, loss=1.0 / (s + 1)) for s in range(9)]), FINDINGS
    )


def with_diary() -> str:
    scales = [2.0**16, *([2.0**15] * 8)]
    records = [StepRecord(step=s, loss=1.0, loss_scale=scale, skipped=s == 0) for s, scale in enumerate(scales)]
    rows = scaled_run(scales, {0}, [overflow("blocks.1.weight", 0, 25, 64000.0)])
    return html.render(FakeRecording(ranks=[0], rows=rows, step_rows=records), HEALTHY)


def of_alignment() -> str:
    plan = plan_of({"baseline": {"command": "a"}, "candidate": {"command": "b"}}, Path("plan.toml"))
    failed = result(0, "failed", "they are apart", why=("a reason",), next=("hypocenter diff a b",), cause="noise")
    return alignment_html.render(
        alignment_of(plan, [failed, *(result(n, "not-run", "") for n in range(1, len(STAGES)))])
    )


PAGES: dict[str, Callable[[], str]] = {
    "run": of_run,
    "nothing": lambda: html.render(FakeRecording(), CANNOT_TELL),
    "ranks": lambda: html.render(job(tp=4, dp=2, pp=2, bad={10: 1}), blaming(10)),
    "loss scale": with_diary,
    "comparison": lambda: comparison_html.render(*diverged()),
    "alignment": of_alignment,
    "headroom": lambda: headroom_html([sample()], "runs/0412"),
    "curves": lambda: curves_html.render(curves_answer(), [("loss", curves_answer())]),
    "answer": lambda: render("show", {"schema": "x/1", "status": "found", "rows": [{"a": 1, "b": "c"}]}, "html"),
}


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("width", [1300, pytest.param(390, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PAGES)
def test_everybody_can_read_it(
    browser: sync_api.Browser,  # noqa: F811
    tmp_path: Path,
    name: str,
    width: int,
    theme: str,
) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGES[name](), encoding="utf-8")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_load_state("networkidle")
    page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true; })")

    assert page.evaluate(ACCESSIBILITY) == []
    context.close()


@pytest.mark.parametrize(("width", "kind"), [(1300, "broad"), (390, "phone")])
def test_a_screen_has_the_chart_that_fits_it(
    browser: sync_api.Browser,  # noqa: F811
    tmp_path: Path,
    width: int,
    kind: str,
) -> None:
    path = tmp_path / "page.html"
    path.write_text(PAGES["curves"](), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(path.as_uri())

    (seen,) = [chart for chart in page.locator("svg.curves").all() if chart.is_visible()]
    assert seen.get_attribute("class") == f"curves {kind}"
    assert page.locator("figure.scroll").first.evaluate("figure => figure.scrollWidth <= figure.clientWidth")
    page.close()
