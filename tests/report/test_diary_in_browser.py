"""The loss-scale chart and the choice of phases and scales, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_fakes import HEALTHY, NASTY, FakeRecording, reading
from test_diary_on_page import overflow, scaled_run
from test_page_in_browser import PIXELS, RED, TWO_FRAMES, browser, opened, pytestmark, sync_api  # noqa: F401

from hypocenter.nouns import StepRecord, Summary
from hypocenter.report.formats import html

SCALES = [2.0**16, *([2.0**15] * 20), 2.0**16, *([2.0**15] * 8)]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    culprits = [overflow("blocks.1.attn.qkv.weight", step, 25, 64000.0) for step in (0, 21)]
    rows = scaled_run(SCALES, {0, 21}, [*culprits, overflow("head.weight", 0, 1, 50000.0)])
    for step, scale in enumerate(SCALES):
        values = Summary(n=64, n_hist=64, absmax=scale / 64, absmin=1e-3)
        rows.append((0, reading("blocks.1", 10, 3.0, step=step)))
        rows.append((0, reading("blocks.1", 20, 0.0, step=step, phase="backward", port="grad_out[0]", summary=values)))
    records = [
        StepRecord(step=step, loss=1.0, loss_scale=scale, skipped=step in (0, 21)) for step, scale in enumerate(SCALES)
    ]
    path = tmp_path_factory.mktemp("diary") / "report.html"
    path.write_text(html.render(FakeRecording(ranks=[0], rows=rows, step_rows=records), HEALTHY), encoding="utf-8")
    return path


def test_the_scale_is_drawn_once_with_its_skips(browser: sync_api.Browser, page_file: Path) -> None:  # noqa: F811
    with opened(browser, page_file) as watched:
        watched.page.wait_for_selector("#diary-chart .uplot canvas")
        watched.page.evaluate(TWO_FRAMES)

        assert RED in watched.page.eval_on_selector("#diary-chart canvas", PIXELS)
        assert watched.page.locator("#curves svg.picture").count() == 1  # the loss; the scale is not drawn twice
        assert watched.complaints == []


def test_the_pointer_names_the_culprits_of_a_skipped_step(browser: sync_api.Browser, page_file: Path) -> None:  # noqa: F811
    with opened(browser, page_file) as watched:
        chart = watched.page.locator("#diary-chart .u-over")
        chart.wait_for()
        width = chart.bounding_box()["width"]  # type: ignore[index]
        chart.hover(position={"x": width * 21 / 29, "y": 60})
        at_skip = watched.page.locator("#diary-chart .tip").inner_text()
        chart.hover(position={"x": 1, "y": 60})
        at_start = watched.page.locator("#diary-chart .tip").inner_text()

        assert "step 21: skipped at loss scale 65536" in at_skip
        assert "blocks.1.attn.qkv.weight" in at_skip
        assert "25 % of it not finite; largest finite |gradient| 64000" in at_skip
        assert "head.weight" in at_start
        assert watched.complaints == []


def test_culprits_are_readable_without_scripts(browser: sync_api.Browser, page_file: Path) -> None:  # noqa: F811
    with opened(browser, page_file, java_script_enabled=False) as watched:
        section = watched.page.locator("#diary").inner_text()
        first = watched.page.locator("table.culprits tbody tr").first.inner_text()

        assert "2 of 30 updates skipped; scale 65536 at step 0, 32768 at step 29" in section
        assert first.split("\t") == ["blocks.1.attn.qkv.weight", "2", "0 to 21", "25 %", "64000", "0.97656"]


def test_one_phase_can_be_shown_and_the_scale_is_said(browser: sync_api.Browser, page_file: Path) -> None:  # noqa: F811
    with opened(browser, page_file) as watched:
        page = watched.page
        title, canvas, assumed = (
            page.locator(".line .chart-title"),
            page.locator(".heat canvas"),
            page.locator(".assumed"),
        )
        canvas.wait_for()
        everything = canvas.get_attribute("aria-label")
        page.select_option("select[aria-label=phase]", "backward")
        gradients, chosen, as_recorded = canvas.get_attribute("aria-label"), title.inner_text(), assumed.inner_text()
        canvas.hover(position={"x": canvas.bounding_box()["width"] - 8, "y": 3})  # type: ignore[index]
        before = page.locator(".heat .tip").inner_text()
        page.select_option("select[aria-label='loss scale']", "0")
        page.select_option("select[aria-label=format]", "float16")
        page.evaluate(TWO_FRAMES)

        assert everything is not None and everything.endswith(": 4 rows, 30 steps")  # noqa: PT018
        assert gradients is not None and gradients.endswith(": 1 rows, 30 steps")  # noqa: PT018
        assert "backward" in chosen
        assert "with the loss scale of their step in them: backward 32768 to 65536" in as_recorded
        assert "|max| ≈ 512" in before
        assert "as if each site were in it; gradients as they would be at loss scale 1" in assumed.inner_text()
        assert "|max| ≈ 0.0156" in page.locator(".heat .tip").inner_text()
        assert watched.complaints == []


def test_a_forward_value_does_not_change_with_the_scale(browser: sync_api.Browser, page_file: Path) -> None:  # noqa: F811
    with opened(browser, page_file) as watched:
        page = watched.page
        page.locator(".heat canvas").wait_for()
        page.select_option("select[aria-label=phase]", "forward")
        page.evaluate(TWO_FRAMES)
        before = page.eval_on_selector(".heat canvas", "c => c.toDataURL()")
        page.select_option("select[aria-label='loss scale']", "24")
        page.evaluate(TWO_FRAMES)

        assert page.eval_on_selector(".heat canvas", "c => c.toDataURL()") == before


def test_hostile_names_in_the_diary_are_text(browser: sync_api.Browser, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "report.html"
    rows = scaled_run([4.0, 2.0], {0}, [overflow(NASTY, 0, 1, 3.0), overflow("y" * 10_000, 0, 1, 3.0)])
    path.write_text(html.render(FakeRecording(rows=rows), HEALTHY), encoding="utf-8")

    with opened(browser, path) as watched:
        watched.page.locator("#diary-chart .u-over").hover(position={"x": 1, "y": 60})
        watched.page.wait_for_selector("#diary-chart .tip")

        assert watched.page.evaluate("window.pwned") is None
        assert watched.page.locator("img").count() == 0
        assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert watched.complaints == []
