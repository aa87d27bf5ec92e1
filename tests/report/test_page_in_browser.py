"""The report page in a real browser: drawn, clickable, silent, offline, readable without scripts, safe."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from report_fakes import (
    CANNOT_TELL,
    FINDINGS,
    HEALTHY,
    HOSTILE,
    NASTY,
    OVERFLOW,
    FakeRecording,
    planted,
    reading,
)  # fmt: skip

from hypocenter.nouns import Diagnosis, Reading, StepRecord, Summary, replace
from hypocenter.report.formats import html

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")]

PIXELS = """canvas => { const g = canvas.getContext("2d"), d = g.getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Set();
  for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) seen.add([d[i], d[i+1], d[i+2]].join());
  return [...seen]; }"""
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
ACCESSIBILITY = Path(__file__).with_name("accessibility.js").read_text(encoding="utf-8")
RED = "209,51,44"  # --bad-cell of the light theme


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
def opened(browser: sync_api.Browser, path: Path, **options: object) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1300, "height": 1000}, color_scheme="light", **options)
    watched = Watched(context.new_page())
    watched.page.goto(path.as_uri())
    yield watched
    context.close()


def steps(n_steps: int, bad_step: int) -> list[StepRecord]:
    return [
        StepRecord(step=i, loss=3.0 - i / n_steps if i < bad_step else math.nan, grad_norm=1.0 + i % 3)
        for i in range(n_steps)
    ]


def at_step(step: int) -> Diagnosis:
    return replace(FINDINGS, findings=(replace(OVERFLOW, step=step, rank=0), *FINDINGS.findings[1:]))


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recording = FakeRecording(rows=[(0, row) for row in planted(40, 8, 36)], step_rows=steps(40, 36))
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html.render(recording, at_step(36)), encoding="utf-8")
    return path


def test_page_is_drawn_without_a_complaint_or_a_request(browser: sync_api.Browser, page_file: Path) -> None:
    with opened(browser, page_file) as watched:
        watched.page.wait_for_selector(".panel canvas")
        watched.page.wait_for_selector(".line .uplot canvas")
        colours = watched.page.eval_on_selector(".heat canvas", PIXELS)

        assert len(colours) > 5
        assert RED in colours
        assert watched.page.locator("#curves svg.picture").count() == 2
        assert watched.complaints == []


def test_card_and_table_are_readable_without_scripts(browser: sync_api.Browser, page_file: Path) -> None:
    with opened(browser, page_file, java_script_enabled=False) as watched:
        card = watched.page.locator(".card.error").inner_text()
        rows = watched.page.locator("table.upstream tbody tr")

        assert "error[HC101] the product overflowed float16" in card
        assert "hidden_states = hidden_gelu * hidden_linear" in card
        assert "format-overflow (proven by replay)" in card
        assert "(verified by replay)" in card
        assert rows.count() == 10
        assert "+inf ×12" in watched.page.locator("tr.first-bad").inner_text()
        assert "NaN ×64" in rows.last.inner_text()
        still = watched.page.locator("#stills svg.map:not(.key)")
        assert still.is_visible()
        assert {"bad", "box", "h0"} <= {shape.get_attribute("class") for shape in still.locator("path, rect").all()}
        assert "DenseReluDense" in (still.text_content() or "")
        assert watched.page.locator(".heat").count() == 0
        loss = watched.page.locator("#curves figure").first
        assert loss.inner_text().startswith("Loss")
        assert "a finding" in loss.inner_text()
        assert loss.locator("path.mark").count() == 2


def test_click_and_key_and_table_row_choose_what_is_charted(browser: sync_api.Browser, page_file: Path) -> None:
    with opened(browser, page_file) as watched:
        title, canvas = watched.page.locator(".line .chart-title .mono"), watched.page.locator(".heat canvas")
        canvas.wait_for()
        start = title.inner_text()
        canvas.click(position={"x": 500, "y": 3})
        clicked = title.inner_text()
        canvas.press("ArrowDown")
        moved = title.inner_text()
        watched.page.locator("table.upstream tbody tr").last.click()

        assert start == "encoder.block.1.layer.1.DenseReluDense out[0]"
        assert clicked == "encoder.block.0.layer.1.layer_norm out[0]"
        assert moved == "encoder.block.0.layer.1.DenseReluDense.wi_0 out[0]"
        assert title.inner_text() == "encoder.block.3.layer.1.layer_norm out[0]"
        assert watched.complaints == []


def test_pointer_tells_site_step_and_value(browser: sync_api.Browser, page_file: Path) -> None:
    with opened(browser, page_file) as watched:
        canvas = watched.page.locator(".heat canvas")
        canvas.wait_for()
        canvas.hover(position={"x": 360, "y": 3})
        good = watched.page.locator(".heat .tip").inner_text()
        canvas.hover(position={"x": canvas.bounding_box()["width"] - 6, "y": 90})  # type: ignore[index]
        bad = watched.page.locator(".heat .tip").inner_text()

        assert "encoder.block.0.layer.1.layer_norm" in good
        assert "|max| ≈" in good
        assert "bits" in good
        assert "step 39: not finite" in bad


def test_what_if_of_another_format_redraws(browser: sync_api.Browser, page_file: Path) -> None:
    with opened(browser, page_file) as watched:
        watched.page.wait_for_selector(".heat canvas")
        own = watched.page.eval_on_selector(".heat canvas", "c => c.toDataURL()")
        watched.page.select_option("select[aria-label=format]", "float8_e4m3fn")
        watched.page.evaluate(TWO_FRAMES)

        assert watched.page.eval_on_selector(".heat canvas", "c => c.toDataURL()") != own
        assert watched.complaints == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 800, 390])
@pytest.mark.parametrize("scripts", [True, False])
def test_page_can_be_read_by_everybody(
    browser: sync_api.Browser, page_file: Path, theme: str, width: int, scripts: bool
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page = context.new_page()
    if scripts:
        page.goto(page_file.as_uri())
        page.wait_for_selector(".line .uplot canvas")
    else:
        text = page_file.read_text(encoding="utf-8")
        page.set_content(text.replace("<script>", "<script type='text/plain'>").replace("script-src", "x-src"))
    page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true; })")

    assert page.evaluate(ACCESSIBILITY) == []
    context.close()


def test_rows_are_found_folded_and_opened(browser: sync_api.Browser, page_file: Path) -> None:
    with opened(browser, page_file) as watched:
        canvas = watched.page.locator(".heat canvas")
        canvas.wait_for()
        title = watched.page.locator(".line .chart-title .mono")
        watched.page.locator("input[type=search]").fill("wi_0")
        watched.page.evaluate(TWO_FRAMES)
        found = canvas.get_attribute("aria-label")
        watched.page.locator("input[type=search]").fill("")
        watched.page.select_option("select[aria-label=fold]", "3")
        watched.page.evaluate(TWO_FRAMES)
        folded, module = canvas.get_attribute("aria-label"), title.inner_text()
        canvas.press("ArrowUp")
        watched.page.evaluate(TWO_FRAMES)
        above = title.inner_text()
        canvas.press("Enter")
        watched.page.evaluate(TWO_FRAMES)

        assert found == "Where and when: 8 rows, 40 steps"
        assert folded == "Where and when: 9 rows, 40 steps"  # the one with the finding stays by itself
        assert "DenseReluDense" in module
        assert above == "encoder.block.1.* 2 rows"
        assert canvas.get_attribute("aria-label") == "Where and when: 3 rows, 40 steps"
        assert watched.page.locator("input[type=search]").input_value() == "encoder.block.1"
        assert watched.complaints == []


def test_steps_are_zoomed_with_keys_and_by_dragging(browser: sync_api.Browser, page_file: Path) -> None:
    with opened(browser, page_file) as watched:
        canvas = watched.page.locator(".heat canvas")
        canvas.wait_for()
        canvas.press("+")
        watched.page.evaluate(TWO_FRAMES)
        nearer = canvas.get_attribute("aria-label"), watched.page.get_by_label("first step").input_value()
        watched.page.get_by_role("button", name="all steps").click()
        box = canvas.bounding_box()
        assert box is not None
        watched.page.mouse.move(box["x"] + box["width"] - 150, box["y"] + 20)
        watched.page.mouse.down()
        watched.page.mouse.move(box["x"] + box["width"] - 90, box["y"] + 20)
        watched.page.mouse.up()
        watched.page.evaluate(TWO_FRAMES)
        dragged = int((canvas.get_attribute("aria-label") or "").split()[-2])

        assert nearer == ("Where and when: 24 rows, 14 steps", "26")  # around the finding at step 36
        assert 1 < dragged < 14
        assert watched.complaints == []


def test_paper_has_the_maps_as_pictures_and_no_controls(browser: sync_api.Browser, page_file: Path) -> None:
    with opened(browser, page_file) as watched:
        watched.page.locator(".heat canvas").wait_for()
        on_screen = watched.page.locator("#stills svg.map:not(.key)").is_visible()
        watched.page.emulate_media(media="print")

        assert not on_screen
        assert watched.page.locator("#stills svg.map:not(.key)").is_visible()
        assert not watched.page.locator(".heat canvas").is_visible()


def test_a_large_model_is_folded_until_each_row_has_its_name(browser: sync_api.Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    recording = FakeRecording(rows=[(0, row) for row in planted(6, 30)], step_rows=steps(6, 5))
    path.write_text(html.render(recording, at_step(5)), encoding="utf-8")

    with opened(browser, path) as watched:
        canvas = watched.page.locator(".heat canvas")
        canvas.wait_for()

        assert canvas.get_attribute("aria-label") == "Where and when: 31 rows, 6 steps"
        assert watched.page.locator("select[aria-label=fold]").input_value() == "5"


def test_a_norm_is_held_against_its_own_median_and_read_before_anybody_points(
    browser: sync_api.Browser, tmp_path: Path
) -> None:
    norms = [
        reading("wo.weight", 0, 0.0, step=s, port="grad", phase="grad", dtype="float32",
                summary=Summary(n=64, sumsq=64.0 if s == 7 else 0.25)) for s in range(9)
    ]  # fmt: skip
    path = tmp_path / "report.html"
    recording = FakeRecording(rows=[(0, row) for row in norms], step_rows=steps(9, 50))
    path.write_text(
        html.render(recording, Diagnosis(status="findings", findings=(replace(OVERFLOW, step=7, site="wo"),)))
    )

    with opened(browser, path) as watched:
        canvas = watched.page.locator(".heat canvas")
        canvas.wait_for()
        title, told = watched.page.locator(".line .chart-title"), watched.page.locator(".u-legend")
        assert title.inner_text() == "wo.weight grad grad, float32: L2 norm over steps"
        assert told.locator("td").all_inner_texts()[:2] == ["7", "8"]  # at step 7, where something was found
        assert "headroom" not in watched.page.locator(".legend").last.inner_text()
        assert "1/256" in watched.page.locator(".legend").last.inner_text()
        assert watched.complaints == []


def one_step() -> list[Reading]:
    return [replace(row, replay=True) for row in planted(1, 8, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one step", "replay", "many steps", "healthy", "empty", "no step rows"])
def test_page_is_right_for_any_extent(browser: sync_api.Browser, tmp_path: Path, name: str) -> None:
    gradients = [reading("wo.weight", 900, 0.5, step=s, port="grad", phase="grad", dtype="float32") for s in range(9)]
    many = [reading(f"l.{i}", i, 1.0 + s % 7, step=s) for s in range(10_000) for i in range(3)]
    recording, diagnosis = {
        "one step": (FakeRecording(rows=[(0, r) for r in planted(1, 8, 0)], step_rows=steps(1, 0)), at_step(0)),
        "replay": (FakeRecording(rows=[(0, r) for r in [*gradients, *one_step()]], step_rows=steps(9, 8)), at_step(0)),
        "many steps": (FakeRecording(rows=[(0, r) for r in many], step_rows=steps(10_000, 9_000)), HEALTHY),
        "healthy": (FakeRecording(rows=[(0, r) for r in planted(9, bad_step=50)], step_rows=steps(9, 50)), HEALTHY),
        "empty": (FakeRecording(), CANNOT_TELL),
        "no step rows": (FakeRecording(rows=[(0, r) for r in planted(9)]), at_step(8)),
    }[name]
    path = tmp_path / "report.html"
    path.write_text(html.render(recording, diagnosis), encoding="utf-8")

    with opened(browser, path) as watched:
        watched.page.get_by_text("unpacking").wait_for(state="detached")
        n_panels = {"replay": 2, "empty": 0}.get(name, 1)
        sync_api.expect(watched.page.locator(".heat canvas")).to_have_count(n_panels)
        watched.page.evaluate(TWO_FRAMES)
        for index in range(n_panels):
            assert len(watched.page.locator(".heat canvas").nth(index).evaluate(PIXELS)) > 3
        assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert watched.complaints == []


def test_hostile_names_are_text(browser: sync_api.Browser, tmp_path: Path) -> None:
    rows = [
        (0, reading(NASTY, 0, 1.0, step=1, port=NASTY, op=NASTY, module=NASTY)),
        (0, reading("y" * 10_000, 1, 1.0, step=1)),
    ]
    run = replace(FakeRecording().run, name=NASTY, command=(NASTY, "z" * 10_000))
    recording = FakeRecording(rows=rows, step_rows=steps(3, 2), run=run, directory=Path(NASTY.replace("/", "_")))
    path = tmp_path / "report.html"
    path.write_text(
        html.render(recording, Diagnosis(status="findings", findings=(HOSTILE,), notes=(NASTY,))), encoding="utf-8"
    )

    with opened(browser, path) as watched:
        watched.page.wait_for_selector(".heat canvas")
        watched.page.locator(".heat canvas").hover(position={"x": 10, "y": 5})
        watched.page.wait_for_selector(".heat .tip")

        assert watched.page.evaluate("window.pwned") is None
        assert watched.page.locator("img").count() == 0
        assert watched.page.locator("script").count() == 8
        assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert watched.complaints == []
